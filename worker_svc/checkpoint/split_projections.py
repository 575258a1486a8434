"""Split projections: files that keep q, k and v, or gate and up, as one matrix, seen as if they kept each by itself.

Phi-3's do. The models then know one form, and fuse what they want fused themselves.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.worker_svc.checkpoint.source import QuantizedTensor, WeightSource
from tetrad.worker_svc.model_facts.config import ModelConfig


class SplitProjections:
    """A WeightSource over another one.

    Args:
        source: with `qkv_proj` and `gate_up_proj`.
        facts: of the model: how many rows each part has.
    """

    def __init__(self, source: WeightSource, facts: ModelConfig) -> None:
        self._source = source
        query, key = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
        self._parts = {
            "q_proj": ("qkv_proj", 0, query),
            "k_proj": ("qkv_proj", query, key),
            "v_proj": ("qkv_proj", query + key, key),
            "gate_proj": ("gate_up_proj", 0, facts.intermediate_size),
            "up_proj": ("gate_up_proj", facts.intermediate_size, facts.intermediate_size),
        }

    @property
    def config(self) -> Mapping[str, Any]:
        """In the form of config.json."""
        return self._source.config

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return self._source.total_bytes

    @property
    def stored_type(self) -> str:
        """As the files have them."""
        return self._source.stored_type

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name, or one that it is a part of."""
        return self._source.has(self._whole(name)[0])

    def unread(self) -> list[str]:
        """Return the tensors of the files of which no part has been loaded."""
        return self._source.unread()

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor, or the part, in float32 and its bytes as stored."""
        whole, rows = self._whole(name)
        if rows is None:
            return self._source.load(name)
        part = self._source.load_stored(whole)[rows]
        return part.float(), part.nbytes

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor, or the part, in the type it is stored in."""
        whole, rows = self._whole(name)
        stored = self._source.load_stored(whole)
        return stored if rows is None else stored[rows]

    def load_quantized(self, name: str) -> QuantizedTensor | None:
        """Return None for a part: files with GGUF's types keep matrices by themselves."""
        return self._source.load_quantized(name) if self._whole(name)[1] is None else None

    def _whole(self, name: str) -> tuple[str, slice | None]:
        """Return the tensor in the files, and the rows that `name` means; None: all."""
        stem, _, kind = name.rpartition(".")
        prefix, _, part = stem.rpartition(".")
        if part not in self._parts:
            return name, None
        whole, start, count = self._parts[part]
        return f"{prefix}.{whole}.{kind}", slice(start, start + count)
