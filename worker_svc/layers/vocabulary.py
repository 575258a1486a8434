"""Vocabulary: the table of embeddings and the output layer, whole on one rank or split among several.

The split is by rows: a token's embedding comes from the rank that has its row, and only the leader has all logits.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.parameters import Lookup

Finish = Callable[[torch.Tensor], torch.Tensor]
"""Function that changes each logit separately, such as a cap."""


class Vocabulary(Protocol):
    """The input embeddings and the output layer of a decoder."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [T, hidden] of ids [T]; the caller may change them."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32 of normed hidden states [N, hidden]."""

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the ids [N] of the largest logits, and these logits [N]; see layers.argmax."""


class WholeVocabulary:
    """A Vocabulary with all rows on this device.

    Args:
        lookup: returns rows of the table [V, hidden].
        output: [hidden] -> [V].
        finish: changes logits after the product.
    """

    def __init__(self, lookup: Lookup, output: Linear, finish: Finish) -> None:
        self._lookup, self._output, self._finish = lookup, output, finish

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See Vocabulary."""
        return self._lookup(token_ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Vocabulary."""
        return self._finish(self._output(hidden).float())

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """See Vocabulary."""
        return argmax(self.logits(hidden))


class Outputs(Protocol):
    """The output layer of a decoder, with all rows of the vocabulary or some of them. See Vocabulary."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, rows] float32 of hidden states [N, hidden]."""

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the numbers [N] of the rows with the largest logits, and these logits [N]."""


class SplitLookup:
    """A Lookup in a table that is split by rows among ranks.

    Args:
        part: returns this rank's rows, numbered from 0.
        num_rows: number of rows of the whole table.
        ranks: the exchanges with all ranks.
    """

    def __init__(self, part: Lookup, num_rows: int, ranks: Collectives) -> None:
        self._part, self._ranks = part, ranks
        self._first, self._end = ranks.shard.bounds(num_rows)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the rows [T, columns] of ids [T]; the caller may change them."""
        is_elsewhere = (token_ids < self._first) | (token_ids >= self._end)
        found = self._part((token_ids - self._first).masked_fill_(is_elsewhere, 0))
        return self._ranks.sum_(found.masked_fill_(is_elsewhere[:, None], 0))


def gathered_logits(own: torch.Tensor, vocab_size: int, ranks: Collectives) -> torch.Tensor:
    """Return the logits [N, vocab_size] of all ranks, or, on a rank that gathers nothing, its `own` ones [N, rows]."""
    size = -(-vocab_size // ranks.shard.size)
    parts = ranks.gather(torch.nn.functional.pad(own, (0, size - own.shape[1])))
    if not parts:
        return own
    bounds = [Shard(index, len(parts)).bounds(vocab_size) for index in range(len(parts))]
    return torch.cat([part[:, : end - first] for part, (first, end) in zip(parts, bounds, strict=True)], 1)


class SplitOutputs:
    """The Outputs of a vocabulary that is split among ranks. Every rank must call the same methods in the same order.

    Args:
        part: the outputs of this rank's rows.
        vocab_size: V of the model.
        ranks: the exchanges with all ranks.
    """

    def __init__(self, part: Outputs, vocab_size: int, ranks: Collectives) -> None:
        self._part, self._vocab_size, self._ranks = part, vocab_size, ranks

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Vocabulary; on a member, the logits of its own rows."""
        return gathered_logits(self._part.logits(hidden), self._vocab_size, self._ranks)

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """See Vocabulary; on a member, the largest of its own rows."""
        ids, values = self._part.argmax(hidden)
        first, _ = self._ranks.shard.bounds(self._vocab_size)
        # float64, which represents both ids and values exactly.
        own = torch.from_numpy(np.stack([ids + float(first), values.astype(np.float64)]))
        parts = self._ranks.gather(own)
        if not parts:
            return ids, values
        found = torch.stack(parts).numpy()  # [ranks, 2, N]
        best = found[:, 1].argmax(0)  # the first rank among equals, or with a NaN, as in a whole vocabulary
        rows = np.arange(found.shape[2])
        return found[best, 0, rows].astype(np.int64), found[best, 1, rows].astype(np.float32)


class SplitVocabulary:
    """A Vocabulary that is split among ranks; see SplitOutputs.

    Args:
        part: this rank's rows, as a vocabulary.
        vocab_size: V of the model.
        ranks: the exchanges with all ranks.
    """

    def __init__(self, part: WholeVocabulary, vocab_size: int, ranks: Collectives) -> None:
        self._lookup, outputs = SplitLookup(part.embed, vocab_size, ranks), SplitOutputs(part, vocab_size, ranks)
        self.logits, self.argmax = outputs.logits, outputs.argmax

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See Vocabulary."""
        return self._lookup(token_ids)
