"""Model interface: the methods of a model that a runner on the host calls."""

from typing import Protocol

import torch

from tetrad.worker_svc.attention.interface import M, MetadataBuilder
from tetrad.worker_svc.core.plan import Floats, GivenRows, Ints
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec


class ModelSizes(Protocol):
    """The sizes of a model that a runner reads."""

    @property
    def vocab_size(self) -> int:
        """The vocabulary size; token ids are below it."""

    @property
    def max_position_embeddings(self) -> int:
        """The number of tokens in the longest sequence."""

    @property
    def embedding_size(self) -> int:
        """The size of embeddings that may replace token ids of the whole model; 0: not supported."""


class Model(Protocol[M]):
    """A loaded decoder. It keeps no state between steps, and runs on the compute thread. `M`: type of attention's metadata."""

    @property
    def config(self) -> ModelSizes:
        """The model's description."""

    @property
    def kv_cache_spec(self) -> KvCacheSpec:
        """The shape of its KV cache."""

    @property
    def attention(self) -> MetadataBuilder[M]:
        """Prepares its steps."""

    @property
    def embedding_size(self) -> int:
        """The size of embeddings that may replace token ids; 0: not supported."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: M,
        given: GivenRows | None = None,
    ) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden] of tokens [T], some `given` as embeddings; write the caches."""

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states [N, hidden] after the last norm, for pooling; valid until the next call."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32 of hidden states [N, hidden]."""

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the ids [N] and values [N] of the largest logits; among equal ones the lowest id, with NaNs the first NaN."""


class StageModel(Protocol[M]):
    """A stage of a pipeline after the first one, which has only layers; see Model."""

    @property
    def config(self) -> ModelSizes:
        """The stage's description."""

    @property
    def hidden_size(self) -> int:
        """The number of values in a hidden state."""

    @property
    def kv_cache_spec(self) -> KvCacheSpec:
        """The shape of its KV cache."""

    @property
    def attention(self) -> MetadataBuilder[M]:
        """Prepares its steps."""

    def add_to(
        self,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: M,
        given: GivenRows | None = None,
    ) -> None:
        """Compute the layers on the residual stream [T, hidden], in place, and write their keys and values.

        Of `given`, only the rows that are added behind the first layers matter.
        """
