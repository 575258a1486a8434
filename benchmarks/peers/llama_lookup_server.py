"""Runs llama.cpp's server from xllamacpp, with llama.cpp's lookup decoding, until stdin is closed. Prints the server's URL.

It runs in the environment "xllama". Arguments: the .gguf file, and "none" or one of llama.cpp's methods of drafting
("ngram_simple", "ngram_cache"), with default settings.
"""

import os
import sys

import xllamacpp


def main() -> None:
    """Serve until stdin is closed."""
    path, method = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel = 4096, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    if method != "none":
        kind = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{method.upper()}")
        params.speculative.types = [kind]
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
