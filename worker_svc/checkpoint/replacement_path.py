"""Replacement path: finds the files that an update of the weights names. Imports no torch: the simulated device has none."""

from pathlib import Path

from tetrad.services.errors import NotFound
from tetrad.services.hub.model_files import resolve_model


def find_replacement(name: str) -> Path:
    """Return the directory or .gguf file that an update names: a path, or the name of a model as at the start.

    Raises NotFound if there is none.
    """
    path = Path(name)
    if path.is_absolute() and not path.exists():
        raise NotFound(f"{name}: the worker's machine has no such directory.")
    return path if path.exists() else resolve_model(name)
