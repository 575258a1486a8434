"""Weight files: tensors of the program as a checkpoint, in a temporary directory that the workers of this machine read.

The directory of the present weights is kept: a worker that is restarted reads it again.
"""

import ctypes
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tetrad.services.errors import InvalidRequest

_MOST_FILE_BYTES = 2 << 30
"""Bytes of tensors that are collected in memory before they are written."""

_DTYPES = {
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float64": "F64",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.uint8": "U8",
    "torch.int8": "I8",
    "torch.int32": "I32",
    "torch.int64": "I64",
}
"""torch's types -> safetensors' names."""

NamedTensors = Iterable[tuple[str, Any]] | Mapping[str, Any]


class _Stored(NamedTuple):
    name: str
    dtype: str
    shape: list[int]
    data: bytes


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
    batch: list[_Stored] = []
    num_files = size_bytes = 0
    for name, tensor in tensors:
        stored = _stored(name, tensor)
        if batch and size_bytes + len(stored.data) > _MOST_FILE_BYTES:
            num_files, size_bytes = num_files + 1, 0
            _write_file(batch, directory / f"model-{num_files:05}.safetensors")
            batch = []
        batch.append(stored)
        size_bytes += len(stored.data)
    if not batch:
        raise InvalidRequest("There are no tensors to update the weights with.", field="named_tensors")
    _write_file(batch, directory / f"model-{num_files + 1:05}.safetensors")


def _write_file(batch: Iterable[_Stored], path: Path) -> None:
    """Write a file in safetensors' format: the length of its header, the header, and the tensors one after the other."""
    header, end = {}, 0
    for each in batch:
        start, end = end, end + len(each.data)
        header[each.name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for each in batch:
            file.write(each.data)


def _stored(name: str, tensor: Any) -> _Stored:
    """Return a torch tensor as it is stored; torch itself is not imported here."""
    dtype = _DTYPES.get(str(getattr(tensor, "dtype", "")))
    if dtype is None or not hasattr(tensor, "data_ptr"):
        text = f"Tensor {str(name)[:200]} must be a torch tensor of floats or integers, got {type(tensor).__name__}."
        raise InvalidRequest(text, field="named_tensors")
    found = tensor.detach().cpu().contiguous()
    # A copy, since a generator may use its memory again. ctypes.string_at copies less than 2 GiB.
    data = bytes((ctypes.c_char * found.nbytes).from_address(found.data_ptr())) if found.nbytes else b""
    return _Stored(name, dtype, list(found.shape), data)


def _do_nothing() -> None:
    """Do nothing: there is no directory to delete."""
