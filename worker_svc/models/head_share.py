"""Head share: the part of a draft head that one rank has, all of it or a part of its layer and of its vocabulary.

Heads are built from a share, and know nothing of ranks. The share of a device's ranks is in cuda/ranks/heads.py.
"""

from typing import Any, Protocol

from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.layers.attention import Attention
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.mlp import Mlp
from tetrad.worker_svc.layers.parameters import Lookup
from tetrad.worker_svc.model_facts.config import ModelConfig


class HeadShare(Protocol):
    """What one rank has of a draft head."""

    @property
    def ranks(self) -> Collectives | None:
        """The ranks that share the head's layer; None: this rank has the whole layer."""

    def tensors(self, whole: WeightSource, config: ModelConfig) -> WeightSource:
        """Return this rank's part of the head's tensors; `config` describes the whole head."""

    def part_of(self, config: ModelConfig) -> ModelConfig:
        """Return the description of this rank's part of a head."""

    def num_rows(self, num_tokens: int) -> int:
        """Return the number of rows that this rank has of a table or an output layer for `num_tokens` tokens."""

    def lookup(self, own: Lookup, num_tokens: int) -> Lookup:
        """Return the lookup of the embeddings of `num_tokens` tokens; `own` returns this rank's rows, numbered from 0."""

    def output(self, own: Linear, num_tokens: int) -> Linear:
        """Return the product with the logits of `num_tokens` tokens; `own` has the logits of this rank's rows."""

    def attention(self, own: Attention[Any]) -> Attention[Any]:
        """Return the attention of all heads; `own` is that of this rank's."""

    def mlp(self, own: Mlp) -> Mlp:
        """Return the whole MLP; `own` is this rank's part."""


class WholeHead:
    """The share of a rank that has a whole head; see HeadShare."""

    ranks: Collectives | None = None

    def tensors(self, whole: WeightSource, config: ModelConfig) -> WeightSource:  # noqa: ARG002 - of HeadShare
        """Return all tensors."""
        return whole

    def part_of(self, config: ModelConfig) -> ModelConfig:
        """Return the description itself."""
        return config

    def num_rows(self, num_tokens: int) -> int:
        """Return the number itself."""
        return num_tokens

    def lookup(self, own: Lookup, num_tokens: int) -> Lookup:  # noqa: ARG002 - of HeadShare
        """Return the lookup itself."""
        return own

    def output(self, own: Linear, num_tokens: int) -> Linear:  # noqa: ARG002 - of HeadShare
        """Return the product itself."""
        return own

    def attention(self, own: Attention[Any]) -> Attention[Any]:
        """Return the attention itself."""
        return own

    def mlp(self, own: Mlp) -> Mlp:
        """Return the MLP itself."""
        return own
