"""Sharded source: one rank's part of every tensor, under the tensor's canonical name.

Of a mapped file only the part's pages are read. Products over inputs that are split (o_proj, down_proj) are sums over ranks, so
the first rank alone has their biases, and the others zeros.
"""

import re

import torch

from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.sharding import key_shard

_BY_ROWS = frozenset(
    {"q_proj", "q_b_proj", "output_gate_proj", "kv_b_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head", "sinks"}
)
_BY_KEY_ROWS = frozenset({"k_proj", "v_proj"})
_BY_COLUMNS = frozenset({"o_proj", "down_proj"})
_MODULE = re.compile(r"(?P<module>\w+)(?:\.(?P<kind>weight|bias))?$")


class ShardCuts:
    """How the modules of a model are cut into one rank's part.

    Args:
        config: of the whole model.
        shard: the rank's.
    """

    def __init__(self, config: ModelConfig, shard: Shard) -> None:
        self._shard = shard
        self._shards = dict.fromkeys(_BY_ROWS, shard) | dict.fromkeys(_BY_KEY_ROWS, key_shard(config, shard))
        if config.head_norms in ("each", "whole"):
            self._shards |= {"q_norm": shard, "k_norm": key_shard(config, shard)}

    def of(self, name: str) -> tuple[Shard | None, Shard | None]:
        """Return which rows and which columns of a module, by its canonical name, the rank has; None: all."""
        module = name.rpartition(".")[2]
        return self._shards.get(module), self._shard if module in _BY_COLUMNS else None


class ShardedSource(WrappedSource):
    """A WeightSource over another one with canonical names.

    Args:
        source: of the whole model.
        config: of the whole model.
        shard: this rank's.
    """

    def __init__(self, source: WeightSource, config: ModelConfig, shard: Shard) -> None:
        super().__init__(source)
        self._shard, self._cuts = shard, ShardCuts(config, shard)

    @property
    def total_bytes(self) -> int:
        """About the bytes that this rank reads."""
        return self._source.total_bytes // self._shard.size

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return this rank's part in float32 and its bytes as stored."""
        stored = self.load_stored(name)
        return stored.to(torch.float32, copy=True), stored.nbytes

    def load_stored(self, name: str) -> torch.Tensor:
        """Return this rank's part in the type it is stored in."""
        return self._part(name, self._source.load_stored(name))

    def load_quantized(self, name: str) -> None:
        """Return None: parts of packed matrices are unpacked."""

    def _part(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        found = _MODULE.search(name)
        assert found is not None, name
        rows, columns = self._cuts.of(found["module"])
        if rows is not None:
            first, end = rows.bounds(len(whole))
            return whole[first:end]
        if columns is None:
            return whole
        if found["kind"] == "bias":
            return whole if self._shard.index == 0 else torch.zeros_like(whole)
        first, end = columns.bounds(whole.shape[1])
        return whole[:, first:end]
