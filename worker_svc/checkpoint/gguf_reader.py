"""GGUF reader: reads a model of one .gguf file or several parts; metadata is in config.json's form. Never imports torch."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tetrad.services.errors import ModelError, one_line
from tetrad.services.models.gguf_container import GgufTensor
from tetrad.services.models.gguf_parts import gguf_part_paths
from tetrad.worker_svc.checkpoint.gguf_configs import scaling_of
from tetrad.worker_svc.checkpoint.gguf_facts import Facts
from tetrad.worker_svc.checkpoint.gguf_metadata import config_from_metadata
from tetrad.worker_svc.checkpoint.gguf_part import GgufPart
from tetrad.worker_svc.checkpoint.gguf_values import dequantize

_ROPE_FACTORS = "rope_freqs.weight"
_ORIGINAL = "original_max_position_embeddings"
_LONGROPE = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
_MAX_ROPE_FACTORS = 1024
_HALVES = {int(gguf.GGMLQuantizationType.F16): "float16", int(gguf.GGMLQuantizationType.BF16): "bfloat16"}
_PLAIN_TYPES: dict[Any, type[np.generic]] = {
    gguf.GGMLQuantizationType.F16: np.float16,
    gguf.GGMLQuantizationType.F32: np.float32,
}


class GgufFile:
    """The mapped files of a model; all parts together are treated as one file.

    Args:
        path: path of the file, or of the first part.

    Raises:
        ModelError: a file is missing, truncated, corrupt, of another model, or of an unknown architecture.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = [GgufPart(part) for part in gguf_part_paths(path)]
        self._metadata = self._parts[0].metadata
        self._part_of = {name: part for part in self._parts for name in part.tensors}
        self._check_parts()
        self._unread = set(self._part_of)
        self.total_bytes = sum(part.size_bytes(name) for name, part in self._part_of.items())
        self.architecture = str(self.field("general.architecture"))
        self.config = self._read_config()

    @property
    def stored_type(self) -> str:
        """GGUF's name of the type in which most bytes are stored."""
        sizes: Counter[int] = Counter()
        for name, part in self._part_of.items():
            sizes[part.tensors[name].kind] += part.size_bytes(name)
        return gguf.GGMLQuantizationType(sizes.most_common(1)[0][0]).name if sizes else ""

    def field(self, key: str) -> Any:
        """Return a metadata value, or None."""
        return self._metadata.get(key)

    def has(self, name: str) -> bool:
        """Return whether there is a tensor with this GGUF name."""
        return name in self._part_of

    def unread(self) -> list[str]:
        """Return the names of the tensors that have not been read."""
        return sorted(self._unread)

    def dequantize(self, name: str) -> tuple[npt.NDArray[np.float32], int]:
        """Return a tensor in float32 and its stored size in bytes; raise KeyError if there is none."""
        part = self._part_of[name]
        tensor, stored = part.tensors[name], part.stored(name)
        size = stored.nbytes
        kind = gguf.GGMLQuantizationType(tensor.kind)
        try:
            if kind in _PLAIN_TYPES:
                stored = stored.view(_PLAIN_TYPES[kind]).reshape(tensor.shape[::-1])
            else:
                stored = stored.reshape(gguf.quant_shape_to_byte_shape(tensor.shape[::-1], kind))
            values = dequantize(stored, kind)
        except (NotImplementedError, ValueError) as error:
            raise part.unreadable(tensor, f"of type {kind.name} cannot be read: {one_line(error)}") from error
        self._unread.discard(name)
        return values, size

    def halves(self, name: str) -> tuple[str, npt.NDArray[np.uint16]] | None:
        """Return the type ("float16" or "bfloat16") and the bits of a tensor of 16-bit floats; None for other types."""
        part = self._part_of[name]
        tensor = part.tensors[name]
        kind = _HALVES.get(tensor.kind)
        if kind is None:
            return None
        self._unread.discard(name)
        return kind, np.ascontiguousarray(part.stored(name)).view(np.uint16).reshape(tensor.shape[::-1])

    def stored(self, name: str) -> tuple[int, npt.NDArray[np.uint8]] | None:
        """Return the number of a matrix's type and its rows [rows, bytes of a row], as a view of the mapped file.

        The matrices of all experts are [experts, rows, bytes of a row]. Returns None if the tensor is not a matrix or not
        quantized; raises KeyError if there is no such tensor.
        """
        part = self._part_of[name]
        tensor = part.tensors[name]
        if len(tensor.shape) not in (2, 3) or gguf.GGMLQuantizationType(tensor.kind) in _PLAIN_TYPES:
            return None
        columns, *rows = tensor.shape
        if columns % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)][0]:
            raise part.unreadable(tensor, f"has rows of {columns} values, no whole number of blocks")
        self._unread.discard(name)
        return tensor.kind, part.stored(name).reshape(*reversed(rows), -1)

    def _read_config(self) -> dict[str, Any]:
        embedding = self._tensor("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(f"{self.path} has no tensor token_embd.weight of two dimensions.")
        config = config_from_metadata(
            self.field, self.has, vocab_size=embedding.shape[-1], is_tied=not self.has("output.weight")
        )
        if self.has(_ROPE_FACTORS):
            config["rope_scaling"] = {"rope_type": "factors", "factors": self._rope_factors(_ROPE_FACTORS)}
        if all(self.has(name) for name in _LONGROPE.values()):
            lists = {key: self._rope_factors(name) for key, name in _LONGROPE.items()}
            # Files of Phi-3 have the values of the scaling, but not its type.
            values = scaling_of(Facts(self.architecture, self.field, self.has))
            config["rope_scaling"] = {**values, "rope_type": "longrope", **lists}
            config[_ORIGINAL] = values.get(_ORIGINAL)
        return config

    def _rope_factors(self, name: str) -> list[float]:
        factors = self._part_of[name].tensors[name]
        if math.prod(factors.shape) > _MAX_ROPE_FACTORS:
            raise self._part_of[name].unreadable(factors, f"has more than {_MAX_ROPE_FACTORS} values")
        values: list[float] = self.dequantize(name)[0].tolist()
        return values

    def _tensor(self, name: str) -> GgufTensor | None:
        return self._part_of[name].tensors[name] if name in self._part_of else None

    def _check_parts(self) -> None:
        """Raise ModelError unless all parts belong to one model and their number is that in the first part."""
        count = self.field("split.count") or len(self._parts)
        if count != len(self._parts):
            raise ModelError(
                f"{self.path} is one of {str(count)[:20]} parts by its metadata, and {len(self._parts)} by its name; "
                "parts are named NAME-00001-of-0000N.gguf."
            )
        numbers = [part.metadata.get("split.no", number) for number, part in enumerate(self._parts)]
        num_tensors = sum(len(part.tensors) for part in self._parts)
        if numbers != list(range(len(self._parts))) or num_tensors != len(self._part_of):
            raise ModelError(f"{self.path} and the other parts beside it are not parts of one model.")
