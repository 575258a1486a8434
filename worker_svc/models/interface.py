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
        """Numbers of tokens are below it."""

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of the longest sequence."""


class Model(Protocol[M]):
    """A loaded decoder; stateless between steps, run by the compute thread. `M` is what attention prepares for a step."""

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
        """Values of an embedding that may be given in place of a token id; 0: none may."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: M,
        given: GivenRows | None = None,
    ) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden] of tokens [T], some `given` as embeddings; writes the caches."""

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states [N, hidden] behind the last norm, which pooling reads; valid until the next call."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, vocab_size] float32 for hidden states [N, hidden]."""

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the id [N] of each row's largest logit, and that [N]: the lowest of equals; if there is a NaN, the first."""


class StageModel(Protocol[M]):
    """A stage of a pipeline behind the first one: layers alone. As Model."""

    @property
    def config(self) -> ModelSizes:
        """The stage's description."""

    @property
    def hidden_size(self) -> int:
        """Values of a hidden state."""

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
    ) -> None:
        """Add the layers' parts to the residual stream [T, hidden], in place, and write their keys and values."""
