"""GGUF reader: a .gguf file opened and checked, its metadata in config.json's form. Never imports torch.

The file is checked for its full length before anything is read from it: a truncated one fails at once, in one line.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tetrad.services.errors import ModelError
from tetrad.worker_svc.weights.gguf_metadata import config_from_metadata

_ROPE_FACTORS = "rope_freqs.weight"


class GgufFile:
    """One mapped file. ModelError when it is truncated, corrupt or of an architecture we do not know."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
        except Exception as error:
            raise ModelError(f"{path} is not a whole GGUF file: {_first_line(error)}") from error
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._check_length()
        self.total_bytes = sum(int(tensor.n_bytes) for tensor in reader.tensors)
        self.architecture = str(self.field("general.architecture"))
        self.config = self._read_config()

    def field(self, key: str) -> Any:
        """Return a metadata value, or None."""
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this GGUF name."""
        return name in self._tensors

    def dequantize(self, name: str) -> tuple[npt.NDArray[np.float32], int]:
        """Return a tensor in float32 and its bytes as stored; KeyError if there is none."""
        tensor = self._tensors[name]
        try:
            values: npt.NDArray[np.float32] = gguf.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            kind = tensor.tensor_type.name
            raise ModelError(f"{self.path.name}: tensor {name} of type {kind} cannot be read: {_first_line(error)}") from error
        return values, int(tensor.n_bytes)

    def _read_config(self) -> dict[str, Any]:
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelError(f"{self.path} has no tensor token_embd.weight.")
        config = config_from_metadata(
            self.field, vocab_size=int(embedding.shape[-1]), is_tied="output.weight" not in self._tensors
        )
        if _ROPE_FACTORS in self._tensors:
            config["rope_scaling"] = {"rope_type": "factors", "factors": self.dequantize(_ROPE_FACTORS)[0].tolist()}
        return config

    def _check_length(self) -> None:
        size = self.path.stat().st_size
        needed = max((int(t.data_offset + t.n_bytes) for t in self._tensors.values()), default=0)
        if size < needed:
            raise ModelError(f"{self.path} is truncated: it has {size} bytes of at least {needed}.")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
