"""llama.cpp's own C++ server of one GGUF file. Runs in the `llamacpp` environment (xllamacpp).

Started as a server, not as a job: it listens on the loopback interface until it is ended. The key
comes in `LLAMA_API_KEY` and is checked on every route but ``/health``.

What decides numbers is set here and not left to defaults: no prompt cache (an answer must not
depend on what was asked before), one KV cache for each slot (a slot never sees its neighbours'
cells, and always holds a whole context), and nothing fitted to the memory that happens to be free.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--model", required=True, help="name it is served under")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True, help="requests computed at a time")
    parser.add_argument("--context", type=int, required=True, help="tokens of each slot")
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    key = os.environ.pop("LLAMA_API_KEY", "")
    if not key:
        print("ERROR: LLAMA_API_KEY is not set: this server does not run without a key")
        return 2

    import xllamacpp

    print(f"xllamacpp {xllamacpp.__version__}", flush=True)
    params = xllamacpp.CommonParams()
    params.model.path = str(arguments.gguf)
    params.model_alias = {arguments.model}
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    # Of a single key llama.cpp logs the end, of two only how many they are.
    params.api_keys = [key, key]
    params.endpoint_metrics = True
    params.endpoint_slots = False  # it would show others' prompts
    params.ui = False
    params.offline = True
    params.verbosity = 4  # the level that tells kernels, memory and KV cache; no prompts
    params.n_parallel = arguments.slots
    params.n_ctx = arguments.slots * arguments.context
    params.cont_batching = True
    params.kv_unified = False
    params.ctx_shift = False
    params.fit_params = False
    params.cache_prompt = False
    params.cache_idle_slots = False
    params.cache_ram_mib = 0
    params.n_ctx_checkpoints = 0
    params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_MMAP  # mapped, never locked
    for pool in (params.cpuparams, params.cpuparams_batch):
        pool.n_threads = arguments.threads
    server = xllamacpp.Server(params)  # returns when the model is loaded
    # The C++ server took these signals for itself and would end alone, without this process.
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    del server  # stops it and waits for its threads
    return 0


if __name__ == "__main__":
    sys.exit(main())
