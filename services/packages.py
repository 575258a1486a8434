"""Packages: lists the modules that each part of Tetrad needs, and makes the error that names the missing ones.

A full installation has all of them; the image of one service has only that service's. Called before services start, and by the
command line. Finds packages without importing them.
"""

import importlib.util
from collections.abc import Sequence

from tetrad.services.errors import Unsupported

MODULES = {
    "frontend": ("fastapi", "httptools", "uvicorn", "msgspec"),
    "tokenizer": ("tokenizers", "jinja2"),
    "engine-core": ("numpy", "llguidance"),
    "worker": ("numpy", "torch", "safetensors", "gguf", "msgspec"),
    "cli": ("httpx", "httpx_sse"),
}
"""Modules that a part needs to start, by the part's file in requirements/ (transformers and tqdm are needed later)."""


def require_packages(what: str, parts: Sequence[str]) -> None:
    """Raise Unsupported, which names the missing packages, if `what` cannot run in this environment."""
    names = dict.fromkeys(name for part in parts for name in MODULES[part])
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        raise missing_packages(what, missing)


def missing_packages(what: str, names: Sequence[str]) -> Unsupported:
    """Return the error for packages that are not installed.

    Args:
        what: the command that needs them ("tetrad serve").
        names: names of the missing modules.
    """
    text = f"{what} needs packages that are not installed ({', '.join(names)}): pip install tetrad."
    return Unsupported(text, reason="MISSING_PACKAGES")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
