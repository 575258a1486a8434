"""Draft head: the interface of a small module that drafts from a model's hidden states, and the taps that read these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

import torch

from tetrad.worker_svc.attention.interface import AttentionBackend, ByGroup, M, M_contra
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.layers.experts import MixOf
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.head_share import HeadShare, WholeHead


@dataclass(frozen=True, slots=True)
class HeadParts(Generic[M]):
    """A device's parts of a draft head.

    Attributes:
        parameters: the head's weights.
        attention: creates the attention of the head's layer.
        mix_of: creates the Mix of the layer's experts.
        device: device of all tensors.
        share: the part of the head that `parameters` has.
    """

    parameters: Parameters
    attention: AttentionBackend[M]
    mix_of: MixOf
    device: torch.device
    share: HeadShare = WholeHead()  # noqa: RUF009 - it has no state


class DraftHead(Protocol[M_contra]):
    """A module with its own keys and values; it keeps no other state between steps. Runs on the compute thread.

    Its input at a position is the hidden state of that position and the next token; it proposes the token after that.

    Attributes:
        config: the description of the head's layer; of several ranks, of this rank's part.
        state_size: number of values in the target's states of a token.
        longest: number of positions that the head supports.
    """

    config: ModelConfig
    state_size: int
    longest: int

    def begin(self, states: torch.Tensor) -> torch.Tensor:
        """Return the head's input hidden states [T, hidden] from the target's states [T, F]."""

    def forward(
        self,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: ByGroup[M_contra],
    ) -> torch.Tensor:
        """Return the head's hidden states [T, hidden] for hidden states [T, hidden] and next tokens [T]; write the caches."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [N, V] float32 over the target's vocabulary; -inf for tokens that the head never proposes."""

    def argmax(self, hidden: torch.Tensor) -> Ints:
        """Return the token [N] with each row's largest logit; works only on the host."""


class Taps(Protocol):
    """Reads the residual stream before each layer."""

    def see(self, index: int, hidden: torch.Tensor) -> None:
        """Read the hidden states [T, hidden] before layer `index` of the model; they are changed afterwards."""


class StageTaps(Taps, Protocol):
    """Taps of a stage of a pipeline, whose states pass on with the stage's hidden states, to the leader in the end.

    Attributes:
        num_passed: number of states [T, hidden] behind the hidden states [T, hidden] in a message.
    """

    num_passed: int

    def pack(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the message [T, (1 + num_passed) * hidden] of hidden states, and forget the states of this step."""

    def unpack(self, message: torch.Tensor) -> torch.Tensor:
        """Return the hidden states [T, hidden] of a message, and keep its states."""


class NoTaps:
    """Taps that read no hidden states; see StageTaps."""

    num_passed = 0

    def see(self, index: int, hidden: torch.Tensor) -> None:
        """Do nothing."""

    def pack(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states."""
        return hidden

    def unpack(self, message: torch.Tensor) -> torch.Tensor:
        """Return the hidden states."""
        return message


class LayerTaps:
    """Taps that keep the hidden states before some layers until `take`; see StageTaps.

    Args:
        layers: numbers of the layers, in the order of their states in the result.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers, self._seen = tuple(layers), dict[int, torch.Tensor]()
        self.num_passed = len(self.layers)

    def see(self, index: int, hidden: torch.Tensor) -> None:
        """Copy the hidden states if the layer is one of `layers`."""
        if index == 0:
            self._seen.clear()  # a step begins, and the one before may have failed
        if index in self.layers:
            self._seen[index] = hidden.clone()

    def take(self) -> torch.Tensor:
        """Return and forget the states [T, layers * hidden] of the last step."""
        states = torch.cat([self._seen[layer] for layer in self.layers], 1)
        self._seen.clear()
        return states

    def pack(self, hidden: torch.Tensor) -> torch.Tensor:
        """See StageTaps; zeros stand for the states of later stages."""
        message = torch.cat([hidden, *(self._seen.get(layer, torch.zeros_like(hidden)) for layer in self.layers)], 1)
        self._seen.clear()
        return message

    def unpack(self, message: torch.Tensor) -> torch.Tensor:
        """See StageTaps."""
        hidden, *states = message.chunk(1 + self.num_passed, 1)
        self._seen = dict(zip(self.layers, states, strict=True))
        return hidden.contiguous()


Tapped = Callable[[ModelConfig], LayerTaps]
"""Function that chooses the layers of a model whose hidden states a draft head reads."""
