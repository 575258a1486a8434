"""Installed: the paths of the installed peers. A missing peer is reported once, in one line."""

import os
from functools import cache
from pathlib import Path


def home() -> Path:
    """Return the directory that `make peers` fills."""
    return Path(os.environ.get("BENCH_PEERS", Path.home() / ".cache" / "tetrad-peers"))


TINY = "tiny"
SMOL_FP32 = "smol_fp32"
SMOL_GGUF = "smol.gguf"


def python_of(environment: str) -> Path:
    """Return the interpreter of a peer's environment: "vllm" or "llama"."""
    return home() / environment / "bin" / "python"


@cache
def is_installed(peer: str) -> bool:
    """Return whether a peer can be run, telling if not."""
    environment, package, model = _NEEDS[peer]
    packages = (home() / environment).glob(f"lib/python3*/site-packages/{package}")
    found = any(packages) and (home() / model).exists()
    if not found:
        print(f"Left out: {peer} is not installed (make peers).", flush=True)
    return found


VLLM = "vLLM 0.32"
TRANSFORMERS = "transformers"
LLAMA_CPP = "llama.cpp"

_NEEDS = {
    VLLM: ("vllm", "vllm", SMOL_FP32),
    TRANSFORMERS: ("vllm", "transformers", SMOL_FP32),
    LLAMA_CPP: ("llama", "llama_cpp", SMOL_GGUF),
}
"""Peer -> its environment, its package there, the model that it runs."""
