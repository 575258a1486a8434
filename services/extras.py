"""Extras: which optional packages a part of Tetrad needs, and the error that names the extra where they are missing.

Called before services are started, and by the command line. Looks packages up without importing them.
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
"""Extra of the package -> the modules without which its part does not start. transformers and tqdm are needed later, or not."""


def require_extras(what: str, extras: Sequence[str]) -> None:
    """Unsupported, naming packages and extra, if `what` cannot run in this environment."""
    found = {extra: [name for name in MODULES[extra] if not _is_installed(name)] for extra in extras}
    missing = {extra: names for extra, names in found.items() if names}
    if missing:
        names = list(dict.fromkeys(name for each in missing.values() for name in each))
        raise missing_packages(what, names, next(iter(missing)) if len(missing) == 1 else "all")


def missing_packages(what: str, names: Sequence[str], extra: str) -> Unsupported:
    """Return the error of packages that are not installed.

    Args:
        what: needs them ("tetrad serve").
        names: modules.
        extra: of the package; brings them.
    """
    text = f"{what} needs packages that are not installed ({', '.join(names)}): pip install 'tetrad[{extra}]'."
    return Unsupported(text, reason="MISSING_PACKAGES")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
