"""Torch file: reads a tensor from a file of torch.save as an array, without torch and without running what the file says.

Such a file is a zip archive with a pickle that describes the tensor, and the bytes of its storage. The pickle is not loaded:
its opcodes are interpreted here, and only those of one tensor are known. So it names no function that is called, and needs no
more memory than its own bytes. Runs in the processes of media. Source: torch's serialization.py and _utils.py.
"""

import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tetrad.tokenizer_svc.media.items import MediaError

_MAX_PICKLE_BYTES = 1 << 12
"""That of a tensor has about 150."""
_MAX_DIMENSIONS = 8
_MAX_ELEMENTS = 1 << 48
"""Of a shape, without its zeros, and of an offset or a stride: numpy counts their bytes in int64 also for an empty tensor."""
_BFLOAT16 = "BFloat16Storage"
_STORAGES: Mapping[str, str] = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    _BFLOAT16: "<u2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
}
"""Storages of torch, and the types of their elements; those of bfloat16 are the upper halves of float32."""
_REBUILD = "torch._utils _rebuild_tensor_v2"
_HOOKS = "collections OrderedDict"
_NAMES = frozenset({_REBUILD, _HOOKS, *(f"torch {name}" for name in _STORAGES)})
_CONSTANTS: Mapping[str, Any] = {"NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "NONE": None}
_VALUES = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"})
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class _Name(NamedTuple):
    """A name that a pickle refers to: module and attribute."""

    text: str


class _Tensor(NamedTuple):
    """What a pickle says of a tensor: the type and the key of its storage, and which elements of it the tensor has."""

    storage: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _NoTensorError(Exception):
    """The pickle describes anything but one tensor."""


def read_torch_file(data: bytes) -> NDArray[Any]:
    """Return the tensor of a file: an array of its shape; bfloat16 becomes float32.

    Raises:
        MediaError: the file is none of torch.save, or holds anything but one tensor of floats or integers.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            root = archive.namelist()[0].partition("/")[0]
            tensor = _described(_member(archive, f"{root}/data.pkl", _MAX_PICKLE_BYTES))
            if f"{root}/byteorder" in archive.namelist() and _member(archive, f"{root}/byteorder", 16) != b"little":
                raise MediaError("the tensor has another byte order than little-endian")
            storage = _member(archive, f"{root}/data/{tensor.key}", len(data))
    except (MediaError, MemoryError):
        raise
    except Exception as error:  # the readers of zip archives and of opcodes raise any error of Python
        raise MediaError("the tensor is no file of torch.save with one tensor alone") from error
    return _elements(tensor, storage)


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Return a file of an archive; torch writes them uncompressed, so none is larger than the archive."""
    found = archive.getinfo(name)
    if found.compress_type != zipfile.ZIP_STORED or found.file_size > most:
        raise MediaError(f"the tensor's file has {name[:80]!r} compressed, or of {found.file_size} bytes")
    return archive.read(found)


def _described(pickle: bytes) -> _Tensor:
    """Return what a pickle says of its tensor, by running the few opcodes that torch.save writes for one."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def popped(number: int) -> tuple[Any, ...]:
        found = tuple(stack[len(stack) - number :])
        del stack[len(stack) - number :]
        return found

    def since_mark() -> tuple[Any, ...]:
        place = len(stack) - 1 - stack[::-1].index(_MARK)
        found = tuple(stack[place + 1 :])
        del stack[place:]
        return found

    actions: dict[str, Callable[[Any], Any]] = {
        "GLOBAL": _named,
        "STACK_GLOBAL": lambda _: _named(" ".join(popped(2))),
        "MARK": lambda _: _MARK,
        "TUPLE": lambda _: since_mark(),
        "BINPERSID": lambda _: popped(1)[0],  # a storage, as a tuple
        "REDUCE": lambda _: _called(*popped(2)),
        "BINGET": memo.__getitem__,
        "LONG_BINGET": memo.__getitem__,
    }
    for opcode, argument, _ in pickletools.genops(pickle):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name == "STOP":
            [tensor] = stack
            if not isinstance(tensor, _Tensor):
                raise _NoTensorError
            return tensor
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _VALUES:
            stack.append(argument)
        elif name in _TUPLES:
            stack.append(popped(_TUPLES[name]))
        else:
            stack.append(actions[name](argument))
    raise _NoTensorError


def _named(text: str) -> _Name:
    if text not in _NAMES:
        raise MediaError(f"the tensor's file refers to {text[:80]!r}; only a tensor of floats or integers is read")
    return _Name(text)


def _called(function: Any, arguments: tuple[Any, ...]) -> Any:
    if function == _Name(_HOOKS) and not arguments:
        return None
    if function != _Name(_REBUILD):
        raise _NoTensorError
    (kind, storage, key, _, _), offset, shape, strides, *_ = arguments
    sizes = (offset, *shape, *strides)
    if kind != "storage" or not isinstance(storage, _Name) or not isinstance(key, str) or len(shape) != len(strides):
        raise _NoTensorError
    if not all(type(size) is int and 0 <= size < _MAX_ELEMENTS for size in sizes) or len(shape) > _MAX_DIMENSIONS:
        raise _NoTensorError
    name = storage.text.removeprefix("torch ")
    if name not in _STORAGES or math.prod(size or 1 for size in shape) >= _MAX_ELEMENTS:
        raise _NoTensorError
    return _Tensor(name, key, offset, tuple(shape), tuple(strides))


def _elements(tensor: _Tensor, storage: bytes) -> NDArray[Any]:
    dtype = np.dtype(_STORAGES[tensor.storage])
    values = np.frombuffer(storage, dtype, len(storage) // dtype.itemsize)
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    # Elements that share memory, as those of an expanded tensor, would let a small file become a large array.
    if not math.prod(tensor.shape) <= len(values) or not last < len(values):
        raise MediaError(f"the tensor of shape {list(tensor.shape)} does not fit its storage of {len(values)} elements")
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    found = np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, strides, writeable=False)
    if tensor.storage == _BFLOAT16:
        return (found.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(found)
