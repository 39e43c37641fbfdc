# The two commands of the README are `make quickstart` and `make test`; the rest helps with them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Two tests at a time, never two servers of the real stack: see tests/conftest.py.
TWO := -n 2 --dist loadscope --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-fast lint format lab clean

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv with the workbench in it (no torch)

$(READY): pyproject.toml workbench/envs/kernel.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "the workbench needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@echo "creating .venv (about a minute)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q -c workbench/envs/kernel.txt -e '.[dev]' 2> .venv/pip.log || { cat .venv/pip.log; exit 3; }
	@touch $@

quickstart: setup  ## demo checkpoint -> quantize -> evaluate -> profile -> verdict, on this machine
	@$(BIN)/workbench env create quantize vllm gguf llamacpp
	@$(BIN)/workbench demo
	@# NO-GO (10) and INCONCLUSIVE (11) are finished jobs here.
	@$(BIN)/workbench run notebooks/recipes/quickstart.yaml; code=$$?; \
	  case $$code in 0|10|11) exit 0;; *) exit $$code;; esac

test: setup lint  ## everything, the real vLLM and the real quantizers included
	@$(BIN)/workbench env create quantize vllm gguf llamacpp lmeval gptqmodel autoawq
	@$(BIN)/workbench demo
	$(BIN)/python -m pytest $(TWO)

test-fast: setup  ## the spine on fakes, in seconds, without torch
	$(BIN)/python -m pytest $(TWO) -m "not real"

lint: setup  ## ruff, mypy, notebooks without outputs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/nbstripout --verify notebooks/*.ipynb

format: setup  ## format the code, strip the notebooks
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/nbstripout notebooks/*.ipynb

lab: setup  ## open the notebooks in JupyterLab
	@$(BIN)/python -m pip install -q -c workbench/envs/kernel.txt -e '.[lab]'
	@$(BIN)/jupyter lab --ip 127.0.0.1 notebooks

clean:  ## remove .venv and caches; results and environments stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build *.egg-info
