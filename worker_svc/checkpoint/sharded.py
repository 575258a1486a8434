"""Sharded source: returns one rank's part of every tensor, under the tensor's canonical name.

Only the part's pages of a mapped file are read. Products whose inputs are split (o_proj, down_proj) are summed over ranks, so
only the first rank has their biases, and the others have zeros.
"""

import re

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.grouped import rounded
from tetrad.worker_svc.checkpoint.packed_weights.matrices import PackedMatrix
from tetrad.worker_svc.checkpoint.source import QuantizedTensor, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.sharding import key_shard, own_experts

_VOCABULARY = frozenset({"embed_tokens", "lm_head", "head"})
"""Modules with a row for each token; `head` is the output layer of an MTP layer."""
_BY_ROWS = _VOCABULARY | {"q_proj", "q_b_proj", "output_gate_proj", "kv_b_proj", "gate_proj", "up_proj", "sinks"}
_BY_KEY_ROWS = frozenset({"k_proj", "v_proj"})
_BY_COLUMNS = frozenset({"o_proj", "down_proj"})
_KIND = re.compile(r"\.(weight|bias)$")
_EXPERTS = ".experts."
_EXPERT = re.compile(r"\.(?:experts|ffn_gate|ffn_up|ffn_down)\.(\d+)\.")
"""Pattern of an expert's number in the name of a file's tensor; older GGUF files have ffn_gate.3 and so on."""


class ShardCuts:
    """Determines one rank's part of each module of a model.

    Args:
        config: the description of the whole model.
        shard: the rank's shard.
        has_whole_experts: whether each rank has whole experts.
    """

    def __init__(self, config: ModelConfig, shard: Shard, *, has_whole_experts: bool = False) -> None:
        self._shard, self._has_whole_experts = shard, has_whole_experts
        self._shards = dict.fromkeys(_BY_ROWS, shard) | dict.fromkeys(_BY_KEY_ROWS, key_shard(config, shard))
        if config.head_norms in ("each", "whole"):
            self._shards |= {"q_norm": shard, "k_norm": key_shard(config, shard)}

    def of(self, name: str) -> tuple[Shard | None, Shard | None]:
        """Return the rank's part of the rows and of the columns of a module, by its canonical name; None: all."""
        if self._has_whole_experts and _EXPERTS in name:
            return None, None
        module = name.rpartition(".")[2]
        return self._shards.get(module), self._shard if module in _BY_COLUMNS else None


class ShardedSource(WrappedSource):
    """A WeightSource of one rank's part of another source with canonical names.

    Args:
        source: the tensors of the whole model.
        config: the description of the whole model.
        shard: this rank's shard.
        experts: the part of whole experts; None: a part of each expert.
    """

    def __init__(self, source: WeightSource, config: ModelConfig, shard: Shard, *, experts: Shard | None = None) -> None:
        super().__init__(source)
        self._shard, self._cuts = shard, ShardCuts(config, shard, has_whole_experts=experts is not None)
        self._experts = experts
        self._num_experts = max((layer.experts.num_experts for layer in config.layers if layer.experts), default=0)

    @property
    def total_bytes(self) -> int:
        """The approximate number of bytes that this rank reads."""
        return self._source.total_bytes // self._shard.size

    def unread(self) -> list[str]:
        """Return the names of tensors of which no part has been loaded, except those of other ranks' experts."""
        return [name for name in self._source.unread() if not self._is_elsewhere(name)]

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return this rank's part in float32 and its bytes as stored."""
        stored = self.load_stored(name)
        return stored.to(torch.float32, copy=True), stored.nbytes

    def load_stored(self, name: str) -> torch.Tensor:
        """Return this rank's part in its stored type."""
        return self._part(name, self._source.load_stored(name))

    def load_quantized(self, name: str) -> tuple[QuantizedTensor | PackedMatrix, int] | None:
        """Return this rank's part of a packed matrix and its size in bytes; None for floats, and for a stack of experts.

        Raises ModelError, with the sizes, if the part would not consist of whole blocks.
        """
        found = self._source.load_quantized(name)
        if found is None:
            return None
        stored, stored_bytes = found
        # Rounded before it is cut, so that all parts together are the same as the matrix of a single rank.
        whole = rounded(stored) if isinstance(stored, torch.Tensor) else stored
        if not isinstance(whole, QuantizedTensor | PackedMatrix):
            return None
        part, (rows, columns) = whole, self._cuts.of(_KIND.sub("", name))
        if rows is not None:
            own = slice(*rows.bounds(whole.shape[0]))
            part = part.of_rows(lambda tensor: tensor[own])
        if columns is not None:
            first, end = columns.bounds(whole.shape[1])
            _check_cut(name, whole.shape[1], columns.size, whole.block)
            part = part.of_columns(first, end)
        return part, stored_bytes * part.shape[0] * part.shape[1] // (whole.shape[0] * whole.shape[1])

    def whole_rows(self, name: str) -> tuple[torch.Tensor, slice] | None:
        """See WrappedSource."""
        _, columns = self._cuts.of(_KIND.sub("", name))
        if columns is None:
            return None
        whole = self._source.load_stored(name)
        return whole, slice(*columns.bounds(whole.shape[1]))

    def _part(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        kind = _KIND.search(name)
        rows, columns = self._cuts.of(_KIND.sub("", name))
        if rows is not None:
            first, end = rows.bounds(len(whole))
            return whole[first:end]
        if columns is None:
            return whole
        if kind is not None and kind[1] == "bias":
            return whole if self._shard.index == 0 else torch.zeros_like(whole)
        first, end = columns.bounds(whole.shape[1])
        return whole[:, first:end]

    def _is_elsewhere(self, stored_name: str) -> bool:
        found = None if self._experts is None else _EXPERT.search(stored_name)
        if self._experts is None or found is None or int(found[1]) >= self._num_experts:
            return False
        return int(found[1]) not in own_experts(self._num_experts, self._experts)


def _check_cut(name: str, num_columns: int, size: int, block: int) -> None:
    """Raise ModelError, with the possible sizes, if parts of a quantized matrix would not consist of whole blocks."""
    sizes = [each for each in range(1, num_columns // block + 1) if num_columns % (each * block) == 0]
    if size not in sizes:
        cuts_expert = _EXPERTS in name
        other = "enable_expert_parallel cuts no experts" if cuts_expert else "on the cpu device, dtype float32 unpacks them"
        raise ModelError(
            f"tensor_parallel_size {size} cuts the {num_columns} columns of {name} into parts of {num_columns // size}, but "
            f"they are quantized in blocks of {block}; it may be {', '.join(map(str, sizes))}; {other}."
        )
