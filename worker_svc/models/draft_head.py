"""Draft head: the interface of a small module that drafts from a model's hidden states, and layers that hand them out."""

from collections.abc import Sequence
from typing import Protocol

import torch

from tetrad.worker_svc.attention.interface import M, MetadataBuilder
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec


class DraftHead(Protocol[M]):
    """A module with keys and values of its own; stateless between steps, run by the compute thread.

    Its row at a position has the hidden state of that position and the token behind it, and proposes the one behind that.

    Attributes:
        longest: positions that it was made for.
    """

    longest: int

    @property
    def kv_cache_spec(self) -> KvCacheSpec:
        """The shape of its KV cache."""

    @property
    def attention(self) -> MetadataBuilder[M]:
        """Prepares its steps."""

    def begin(self, states: torch.Tensor) -> torch.Tensor:
        """Return hidden states [T, hidden] of the head from those that the target hands out [T, F]."""

    def forward(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor, caches: list[torch.Tensor], metadata: M
    ) -> torch.Tensor:
        """Return the head's hidden states [T, hidden] of tokens [T] behind hidden states [T, hidden]; writes the caches."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, V] float32 over the target's vocabulary for its hidden states; -inf for what it never proposes."""

    def argmax(self, hidden: torch.Tensor) -> Ints:
        """Return the token [N] with each row's largest logit."""


class Taps(Protocol):
    """Sees the residual stream in front of each layer."""

    def see(self, index: int, hidden: torch.Tensor) -> None:
        """Look at hidden states [T, hidden] in front of layer `index`, which are changed afterwards."""


class NoTaps:
    """Keeps nothing; see Taps."""

    def see(self, index: int, hidden: torch.Tensor) -> None:
        """Do nothing."""


class LayerTaps:
    """Keeps the hidden states in front of some layers until they are taken; see Taps.

    Args:
        layers: their numbers, in the order in which the states stand beside each other.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers, self._seen = tuple(layers), dict[int, torch.Tensor]()

    def see(self, index: int, hidden: torch.Tensor) -> None:
        """Copy what is wanted."""
        if index in self.layers:
            self._seen[index] = hidden.clone()

    def take(self) -> torch.Tensor:
        """Return the states [T, layers * hidden] of the last step."""
        states = torch.cat([self._seen[layer] for layer in self.layers], 1)
        self._seen.clear()
        return states
