"""Packages: lists the modules that each part of Tetrad needs, and raises the error that names the missing ones.

A full installation has all of them; the image of one service has its own. Called before services are started, and by
the command line. Looks packages up without importing them.
"""

import importlib.util
from collections.abc import Sequence

from tetrad.services.errors import Unsupported

MODULES = {
    "frontend": ("fastapi", "httptools", "uvicorn", "msgspec"),
    "tokenizer": ("tokenizers", "jinja2"),
    "engine-core": ("numpy", "llguidance"),
    "worker": ("numpy", "torch", "safetensors", "gguf"),
    "cli": ("httpx", "httpx_sse"),
}
"""File in requirements/ -> the modules without which its part does not start (transformers and tqdm are needed later)."""


def require_packages(what: str, parts: Sequence[str]) -> None:
    """Unsupported, naming the packages, if `what` cannot run in this environment."""
    names = dict.fromkeys(name for part in parts for name in MODULES[part])
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        raise missing_packages(what, missing)


def missing_packages(what: str, names: Sequence[str]) -> Unsupported:
    """Return the error of packages that are not installed.

    Args:
        what: needs them ("tetrad serve").
        names: modules.
    """
    text = f"{what} needs packages that are not installed ({', '.join(names)}): pip install tetrad."
    return Unsupported(text, reason="MISSING_PACKAGES")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
