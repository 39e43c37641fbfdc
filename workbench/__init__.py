"""Quantization and evaluation workbench: may this quantized model ship?

Light on purpose: importing it costs milliseconds and never imports torch.
"""

__version__ = "0.1.0"
