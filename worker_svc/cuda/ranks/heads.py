"""Head shares of several ranks: each rank has a part of a draft head's layer and vocabulary, like its part of the model.

A pass of a head has the exchanges of a layer: sums of its embeddings, of attention and of the MLP, and the gathered logits.
"""

from typing import Any

from tetrad.worker_svc.checkpoint.sharded import ShardedSource
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.cuda.ranks.linears import GatheredOutput
from tetrad.worker_svc.layers.attention import Attention
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.mlp import Mlp
from tetrad.worker_svc.layers.parameters import Lookup
from tetrad.worker_svc.layers.summed import SummedAttention, SummedMlp
from tetrad.worker_svc.layers.vocabulary import SplitLookup
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.sharding import divides, shard_config
from tetrad.worker_svc.models.head_share import HeadShare, WholeHead


class DividedHead:
    """A part of a head on each rank; see HeadShare.

    Args:
        ranks: the exchanges with the other ranks.
    """

    def __init__(self, ranks: Collectives) -> None:
        self.ranks = ranks

    def tensors(self, whole: WeightSource, config: ModelConfig) -> WeightSource:
        """See HeadShare."""
        return ShardedSource(whole, config, self.ranks.shard)

    def part_of(self, config: ModelConfig) -> ModelConfig:
        """See HeadShare."""
        return shard_config(config, self.ranks.shard)

    def num_rows(self, num_tokens: int) -> int:
        """See HeadShare."""
        first, end = self.ranks.shard.bounds(num_tokens)
        return end - first

    def lookup(self, own: Lookup, num_tokens: int) -> Lookup:
        """See HeadShare."""
        return SplitLookup(own, num_tokens, self.ranks)

    def output(self, own: Linear, num_tokens: int) -> Linear:
        """See HeadShare."""
        return GatheredOutput(own, num_tokens, self.ranks)

    def attention(self, own: Attention[Any]) -> Attention[Any]:
        """See HeadShare."""
        return SummedAttention(own, self.ranks)

    def mlp(self, own: Mlp) -> Mlp:
        """See HeadShare."""
        return SummedMlp(own, self.ranks)


def share_of(config: ModelConfig, ranks: Collectives | None) -> HeadShare:
    """Return a rank's share of a head: the whole head if there is one rank, or if the head cannot be divided.

    Args:
        config: the description of the whole head.
        ranks: the ranks that share the model; None: one rank has the whole model.
    """
    return DividedHead(ranks) if ranks is not None and divides(config, ranks.shard.size) else WholeHead()
