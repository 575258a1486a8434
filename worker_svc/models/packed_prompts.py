"""Packed prompts: prompts one after another in one tensor, without padding, and what encoders do with them first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.model_facts.encoder import EncoderConfig
from tetrad.worker_svc.models.encoder_weights import EncoderWeights

Upload = Callable[[np.ndarray], torch.Tensor]
"""Brings values to the device of an encoder, without waiting for it."""


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Prompts that attention computes together.

    Attributes:
        tokens: [prompts, L], the indices of their tokens among all; behind a prompt's end stands its last token again.
        lengths: [prompts], at most L.
    """

    tokens: Ints
    lengths: Ints


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """Prompts one after another.

    Attributes:
        token_ids: [T].
        lengths: [N], T in all; none is 0.
        token_types: [T], 0 or 1.
    """

    token_ids: Ints
    lengths: Ints
    token_types: Ints

    @classmethod
    def of(cls, prompts: Sequence[Ints], boundaries: Sequence[int | None]) -> "PackedPrompts":
        """Return prompts packed; `boundaries` are the first tokens of type 1, None: all are of type 0."""
        lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        types = [
            (np.arange(len(prompt)) >= (len(prompt) if boundary is None else boundary)).astype(np.int64)
            for prompt, boundary in zip(prompts, boundaries, strict=True)
        ]
        return cls(np.concatenate(prompts), lengths, np.concatenate(types))

    @property
    def positions(self) -> Ints:
        """Position of each token in its prompt, [T]."""
        return np.arange(len(self.token_ids)) - np.repeat(self.starts, self.lengths)

    @property
    def starts(self) -> Ints:
        """First token of each prompt, [N]."""
        return np.cumsum(self.lengths) - self.lengths

    def groups_of_equal_length(self) -> list[PromptGroup]:
        """Return the prompts of each length."""
        return [self._group(self.lengths == length, int(length)) for length in np.unique(self.lengths)]

    def groups_of_similar_length(self) -> list[PromptGroup]:
        """Return few groups, for devices where each launch costs: one for each power of two, to which prompts are padded."""
        exponents = np.ceil(np.log2(self.lengths)).astype(np.int64)
        groups = (exponents == exponent for exponent in np.unique(exponents))
        return [self._group(which, int(self.lengths[which].max())) for which in groups]

    def _group(self, which: np.ndarray, longest: int) -> PromptGroup:
        lengths = self.lengths[which]
        places = np.minimum(np.arange(longest), lengths[:, None] - 1)
        return PromptGroup(self.starts[which][:, None] + places, lengths)


class PackedEncoder(Protocol):
    """An encoder of packed prompts, whichever program runs it."""

    @property
    def vocab_size(self) -> int:
        """Token ids are smaller."""

    def forward(self, prompts: PackedPrompts) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden_size]; valid until the next call."""


class Embeddings:
    """Tables of words, positions and token types; what they give is not normed yet.

    Args:
        config: sizes.
        weights: of the encoder.
        upload: brings ids to the tables.
    """

    def __init__(self, config: EncoderConfig, weights: EncoderWeights, upload: Upload = torch.from_numpy) -> None:
        names, self._upload = weights.names, upload
        self._words = weights.table(names.words, config.vocab_size)
        self._types = weights.table(names.token_types, config.num_token_types) if config.num_token_types else None
        num_positions = config.max_position_embeddings + config.first_position
        is_learned = not config.ropes
        self._positions = weights.table(names.positions, num_positions)[config.first_position :] if is_learned else None

    def of(self, prompts: PackedPrompts) -> torch.Tensor:
        """Return the sum of the tables' rows, [T, hidden_size]."""
        x = self._words[self._upload(prompts.token_ids)]
        if self._positions is not None:
            x += self._positions[self._upload(prompts.positions)]
        if self._types is not None:
            x += self._types[self._upload(np.minimum(prompts.token_types, len(self._types) - 1))]
        return x
