"""Packed prompts: concatenates prompts in one tensor, without padding, and embeds them for encoders."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.model_facts.encoder import EncoderConfig
from tetrad.worker_svc.models.encoder_weights import EncoderWeights

Upload = Callable[[np.ndarray], torch.Tensor]
"""Function that copies values to the device of an encoder, without waiting for the device."""


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Prompts whose attention is computed together.

    Attributes:
        tokens: [prompts, L], indices of their tokens among all tokens; after a prompt's end, its last token is repeated.
        lengths: [prompts], at most L.
    """

    tokens: Ints
    lengths: Ints


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """N concatenated prompts.

    Attributes:
        token_ids: [T].
        lengths: [N], with the sum T; none is 0.
        token_types: [T], 0 or 1.
    """

    token_ids: Ints
    lengths: Ints
    token_types: Ints

    @classmethod
    def of(cls, prompts: Sequence[Ints], boundaries: Sequence[int | None]) -> "PackedPrompts":
        """Pack prompts; `boundaries` are the indices of the first tokens of type 1, None: all tokens are of type 0."""
        lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        types = [
            (np.arange(len(prompt)) >= (len(prompt) if boundary is None else boundary)).astype(np.int64)
            for prompt, boundary in zip(prompts, boundaries, strict=True)
        ]
        return cls(np.concatenate(prompts), lengths, np.concatenate(types))

    @property
    def positions(self) -> Ints:
        """The position of each token in its prompt, [T]."""
        return np.arange(len(self.token_ids)) - np.repeat(self.starts, self.lengths)

    @property
    def starts(self) -> Ints:
        """The index of each prompt's first token, [N]."""
        return np.cumsum(self.lengths) - self.lengths

    def groups_of_equal_length(self) -> list[PromptGroup]:
        """Return groups of prompts with the same length."""
        return [self._group(self.lengths == length, int(length)) for length in np.unique(self.lengths)]

    def groups_of_similar_length(self) -> list[PromptGroup]:
        """Return few groups of padded prompts, one for each power of two, for devices on which each launch takes time."""
        exponents = np.ceil(np.log2(self.lengths)).astype(np.int64)
        groups = (exponents == exponent for exponent in np.unique(exponents))
        return [self._group(which, int(self.lengths[which].max())) for which in groups]

    def _group(self, which: np.ndarray, longest: int) -> PromptGroup:
        lengths = self.lengths[which]
        places = np.minimum(np.arange(longest), lengths[:, None] - 1)
        return PromptGroup(self.starts[which][:, None] + places, lengths)


class PackedEncoder(Protocol):
    """An encoder of packed prompts, of any implementation."""

    @property
    def vocab_size(self) -> int:
        """The vocabulary size; token ids are below it."""

    def forward(self, prompts: PackedPrompts) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden_size]; valid until the next call."""


SumRows = Callable[[Sequence[tuple[torch.Tensor, Ints]]], torch.Tensor]
"""Function (tables [N, hidden], each with the index of a row for every token [T]) -> sums of the rows [T, hidden]."""


def rows_summed_by_numpy(parts: Sequence[tuple[torch.Tensor, Ints]]) -> torch.Tensor:
    """Sum on the calling thread; see SumRows.

    Torch divides these few megabytes among its threads, which on a busy machine wait for each other longer than they compute.
    """
    (table, indices), *others = parts
    x = table.numpy().take(indices, 0)
    for table, indices in others:
        x += table.numpy().take(indices, 0)
    return torch.from_numpy(x)


def rows_summed_by_torch(upload: Upload, parts: Sequence[tuple[torch.Tensor, Ints]]) -> torch.Tensor:
    """Sum on the device to which `upload` copies the indices; see SumRows."""
    (table, indices), *others = parts
    x = table[upload(indices)]
    for table, indices in others:
        x += table[upload(indices)]
    return x


class Embeddings:
    """The tables of words, positions and token types; their sum is not normed yet.

    Args:
        config: the sizes of the encoder.
        weights: the encoder's tensors.
        sum_rows: sums rows of the tables.
    """

    def __init__(self, config: EncoderConfig, weights: EncoderWeights, sum_rows: SumRows = rows_summed_by_numpy) -> None:
        names, self._sum_rows = weights.names, sum_rows
        self._words = weights.table(names.words, config.vocab_size)
        self._types = weights.table(names.token_types, config.num_token_types) if config.num_token_types else None
        num_positions = config.max_position_embeddings + config.first_position
        is_learned = not config.ropes
        self._positions = weights.table(names.positions, num_positions)[config.first_position :] if is_learned else None

    def of(self, prompts: PackedPrompts) -> torch.Tensor:
        """Return the sum of the tables' rows, [T, hidden_size]."""
        parts = [(self._words, prompts.token_ids)]
        if self._positions is not None:
            parts.append((self._positions, prompts.positions))
        if self._types is not None:
            parts.append((self._types, np.minimum(prompts.token_types, len(self._types) - 1)))
        return self._sum_rows(parts)
