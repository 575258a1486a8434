"""PyTorch file (pytorch_model.bin): reads a pickle of tensors with torch's restricted unpickler, which runs no code.

The file is not trusted. Archives are mapped; their members must not be compressed, so that none is larger in memory than in the
file, and no tensor may claim more values than its bytes contain. Files of PyTorch before 1.6, which are not archives, are read
completely.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from tetrad.services.errors import ModelError, one_line

_WRONG = re.compile(r"(Trying to load u|U)nsupported .*")
_MAX_REASON = 200


class TorchFile:
    """A TensorFile in PyTorch's format; raises ModelError if the file is incomplete or has content other than named tensors."""

    def __init__(self, path: Path) -> None:
        self._tensors = _tensors(path, _read(path))

    def names(self) -> Iterable[str]:
        """See TensorFile."""
        return self._tensors

    def get(self, name: str) -> torch.Tensor:
        """See TensorFile."""
        return self._tensors[name]


def _read(path: Path) -> object:
    is_archive = zipfile.is_zipfile(path)
    try:
        if is_archive:
            _check_members(path)
        with warnings.catch_warnings(action="ignore"):  # warnings about unusual pickle protocols
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError as error:
        raise ModelError(f"{path} holds more than tensors, which could run code: {_reason(error)}. Refused.") from error
    except ModelError:
        raise
    except Exception as error:  # broken bytes can make the unpickler raise any error
        raise ModelError(f"{path} is not a whole PyTorch file: {_reason(error)}.") from error


def _check_members(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ModelError(f"{path} has compressed members, which PyTorch does not write.")


def _tensors(path: Path, content: object) -> dict[str, torch.Tensor]:
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise ModelError(f"{path} holds {type(content).__name__}, not tensors by name.")
    tensors = {name: value.detach() for name, value in content.items() if isinstance(value, torch.Tensor)}
    if len(tensors) < len(content):
        name = next(name for name in content if name not in tensors)
        raise ModelError(f"{path} holds more than tensors: {name[:100]!r} is {type(content[name]).__name__}.")
    for name, tensor in tensors.items():
        if not _is_plain(tensor):
            raise ModelError(f"{path}: tensor {name[:100]!r} does not lie in the file as its shape says.")
    return tensors


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is in host memory, dense, and not larger than its storage."""
    is_dense = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized
    return is_dense and tensor.nbytes <= tensor.untyped_storage().nbytes()


def _reason(error: Exception) -> str:
    """Return the sentence with the cause; torch adds several lines of advice around it."""
    lines = [found.group() for found in map(_WRONG.search, str(error).splitlines()) if found]
    return (lines[0] if lines else one_line(error).partition(". ")[0])[:_MAX_REASON].rstrip(".")
