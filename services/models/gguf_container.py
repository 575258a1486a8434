"""GGUF container: reads the header of a .gguf file, its metadata and table of tensors, as plain values.

Called by the tokenizer's and the worker's loaders. Knows the container format (versions 2 and 3, little-endian), not the
meaning of keys or tensor types. The file is untrusted: memory is allocated for bytes that exist, never for a declared count or
length, so time and memory depend on the size of the header, which is limited. gguf.GGUFReader makes three numpy views per
value, takes 2 s for a vocabulary of 49,152 tokens, and trusts the file.
"""

import errno
import mmap
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tetrad.services.errors import ModelError

Value: TypeAlias = "int | float | bool | str | list[int] | list[float] | list[bool] | list[str]"

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
"""The length of a text, before its bytes."""
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
# The limits on dimensions and names are those of llama.cpp; the others are about 10 times the values of the largest models.
_MAX_DIMS = 4
_MAX_KEY_BYTES = 1 << 16
_MAX_ALIGNMENT = 1 << 20
_MAX_TENSORS = 1 << 17
_MAX_PAIRS = 1 << 16
_MAX_ARRAY_VALUES = 8 << 20
_MAX_HEADER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """An entry of the table of tensors.

    Attributes:
        name: llama.cpp's name of the tensor.
        shape: its dimensions, the fastest-changing one first, as in GGUF.
        kind: GGML's number of the type of its values.
        offset: byte of the file at which it begins; checked to be within the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The part of the file before the values of the tensors."""

    metadata: dict[str, Value]
    tensors: tuple[GgufTensor, ...]


def read_gguf_header(path: Path) -> GgufHeader:
    """Return metadata and tensors of a GGUF file; the values of the tensors are not read.

    Raises:
        ModelError: the file is not a GGUF file of a supported version, is truncated, contradicts itself or exceeds the limits.
    """
    try:
        # Opening a named pipe would block until a writer opens it.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is no regular file")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).read()
    except (OSError, ValueError, struct.error, IndexError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            text = (
                f"{path} has {path.stat().st_size} bytes, and this process has too little address space left to map them."
                " Raise its limit (ulimit -v)."
            )
            raise ModelError(text, field="model", reason="NO_MEMORY") from error
        raise ModelError(f"{path} is not a whole GGUF file: {error}. Is it complete?", field="model") from error


class _Reader:
    """Reads the bytes once, in order. Every read past the end raises struct.error or ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._end = min(len(data), _MAX_HEADER_BYTES)
        self._position = 0
        self._num_array_values = 0

    def read(self) -> GgufHeader:
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not start with the letters GGUF")
        self._position = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}, supported are {_VERSIONS}")
        num_tensors = self._count("Q", _MAX_TENSORS, "tensors")
        num_pairs = self._count("Q", _MAX_PAIRS, "metadata keys")
        metadata: dict[str, Value] = {}
        for _ in range(num_pairs):
            key = self._string(_MAX_KEY_BYTES)
            if key in metadata:
                raise ValueError(f"it has the key {key[:80]!r} twice")
            metadata[key] = self._value(int(self._scalar("I")))
        return GgufHeader(metadata, self._read_tensors(num_tensors, metadata))

    def _read_tensors(self, num_tensors: int, metadata: dict[str, Value]) -> tuple[GgufTensor, ...]:
        lines = [self._read_tensor() for _ in range(num_tensors)]
        if len({line.name for line in lines}) != len(lines):
            raise ValueError("it has two tensors of one name")
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise ValueError(f"its general.alignment is {str(alignment)[:80]}, not a power of two up to {_MAX_ALIGNMENT}")
        start = -(-self._position // alignment) * alignment
        # This detects a truncated download even if the caller does not read the tensors.
        last = start + max((line.offset for line in lines), default=-start)
        if last and last >= len(self._data):
            raise ValueError(f"it is truncated: a tensor begins at byte {last}, past its end at {len(self._data)}")
        return tuple(GgufTensor(line.name, line.shape, line.kind, start + line.offset) for line in lines)

    def _read_tensor(self) -> GgufTensor:
        name = self._string(_MAX_KEY_BYTES)
        shape = tuple(int(self._scalar("Q")) for _ in range(self._count("I", _MAX_DIMS, "dimensions of a tensor")))
        kind, offset = int(self._scalar("I")), int(self._scalar("Q"))
        return GgufTensor(name, shape, kind, offset)

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_code(kind))
        kind, length = int(self._scalar("I")), int(self._scalar("Q"))
        self._num_array_values += length
        if self._num_array_values > _MAX_ARRAY_VALUES:
            raise ValueError(f"its arrays have more than {_MAX_ARRAY_VALUES} values")
        if kind == _STRING:
            return self._strings(length)
        return self._scalars(_code(kind), length)

    def _count(self, code: str, limit: int, what: str) -> int:
        count = int(self._scalar(code))
        if count > limit:
            raise ValueError(f"it claims {count} {what}, the limit is {limit}")
        return count

    def _scalar(self, code: str) -> int | float | bool:
        self._check_room(struct.calcsize(f"<{code}"))
        [value] = struct.unpack_from(f"<{code}", self._data, self._position)
        self._position += struct.calcsize(f"<{code}")
        return value  # type: ignore[no-any-return] # struct's results depend on the code

    def _scalars(self, code: str, length: int) -> list[int] | list[float]:
        size = struct.calcsize(f"<{code}") * length
        self._check_room(size)
        values = struct.unpack_from(f"<{length}{code}", self._data, self._position)
        self._position += size
        return list(values)

    def _string(self, max_bytes: int = _MAX_HEADER_BYTES) -> str:
        length = self._count("Q", max_bytes, "bytes for one text")
        self._check_room(length)
        start, self._position = self._position, self._position + length
        return _text(self._data[start : self._position])

    def _strings(self, length: int) -> list[str]:
        """Return `length` texts. A vocabulary has a hundred thousand: a call for each would be half of a header's time."""
        texts: list[str] = []
        for _ in range(length):
            start = self._position + _LENGTH.size
            end = start + _LENGTH.unpack_from(self._data, self._position)[0] if start <= self._end else start
            if end > self._end:
                texts.append(self._string())  # raises an error that states the problem
                continue
            texts.append(_text(self._data[start:end]))
            self._position = end
        return texts

    def _check_room(self, num_bytes: int) -> None:
        if self._position + num_bytes <= self._end:
            return
        if self._end < len(self._data):
            raise ValueError(f"its header is longer than {_MAX_HEADER_BYTES} bytes")
        raise ValueError(f"{num_bytes} bytes at byte {self._position} go past its end at {self._end}")


def _text(value: bytes) -> str:
    # Some files have vocabulary entries that end in the middle of a character.
    return value.decode("utf-8", "replace")


def _code(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"there is no value type {kind}")
    return _SCALARS[kind]
