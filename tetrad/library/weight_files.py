"""Weight files: tensors of the program as a checkpoint, in a temporary directory that the workers of this machine read.

The directory of the present weights is kept: a worker that is restarted reads it again.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tetrad.services.errors import InvalidRequest

_MOST_FILE_BYTES = 2 << 30
"""Bytes of tensors that are collected in memory before they are written."""

NamedTensors = Iterable[tuple[str, Any]] | Mapping[str, Any]


class WeightFiles:
    """The temporary directory of the last update with tensors; deleted with this object."""

    def __init__(self) -> None:
        self._delete: Callable[[], object] = _do_nothing

    @contextmanager
    def written(self, tensors: NamedTensors) -> Iterator[str]:
        """Write tensors, and provide the path of their directory, which replaces the one before unless an error is raised.

        Args:
            tensors: pairs of names and torch tensors, or a mapping of them; a generator is read one tensor after the other.
        """
        made = tempfile.mkdtemp(prefix="tetrad-tensors-")
        delete = weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        try:
            _write(tensors.items() if isinstance(tensors, Mapping) else tensors, Path(made))
            yield made
        except BaseException:
            delete()
            raise
        self._delete()
        self._delete = delete


def _write(tensors: Iterable[tuple[str, Any]], directory: Path) -> None:
    from safetensors.torch import save_file  # takes a second to import

    batch: dict[str, Any] = {}
    size_bytes = num_files = 0
    for name, tensor in tensors:
        if not all(hasattr(tensor, attribute) for attribute in ("detach", "nbytes", "contiguous")):
            text = f"Tensor {str(name)[:200]} must be a torch tensor, got {type(tensor).__name__}."
            raise InvalidRequest(text, field="named_tensors")
        if batch and size_bytes + tensor.nbytes > _MOST_FILE_BYTES:
            num_files += 1
            save_file(batch, directory / f"model-{num_files:05}.safetensors")
            batch, size_bytes = {}, 0
        # A copy: tied tensors share memory, which a file cannot.
        batch[name] = tensor.detach().cpu().contiguous().clone()
        size_bytes += tensor.nbytes
    if not batch:
        raise InvalidRequest("There are no tensors to update the weights with.", field="named_tensors")
    save_file(batch, directory / f"model-{num_files + 1:05}.safetensors")


def _do_nothing() -> None:
    """Do nothing: there is no directory to delete."""
