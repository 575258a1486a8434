"""Shard linears: the weights of one rank's part of a decoder, whose products and lookups exchange results with the other ranks.

Products whose inputs are split (o_proj, down_proj) are summed over the ranks. The vocabulary is split by rows: an embedding is
the sum of all ranks' rows, of which one is not zero, and every rank gathers all logits.
"""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.cuda.interface import DeviceParameters
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.parameters import Lookup
from tetrad.worker_svc.layers.vocabulary import SplitLookup, gathered_logits

_SUMMED = (".o_proj", ".down_proj")


class ShardLinears:
    """The DeviceParameters of one rank.

    Args:
        inner: loads this rank's weights.
        vocab_size: number of rows of the whole vocabulary; all sizes that callers give are those of this rank's part.
        ranks: the exchanges with the other ranks.
    """

    def __init__(self, inner: DeviceParameters, vocab_size: int, ranks: Collectives) -> None:
        self._inner, self._vocab_size, self._ranks = inner, vocab_size, ranks
        self.has, self.scalar, self.vector, self.embedding = inner.has, inner.scalar, inner.vector, inner.embedding
        self.constants, self.dtype = inner.constants, inner.dtype

    @property
    def tensors(self) -> list[torch.Tensor]:
        """See DeviceParameters."""
        return self._inner.tensors

    def linear(
        self,
        names: Sequence[tuple[str, int]],
        in_features: int,
        *,
        rotated: Sequence[bool] | None = None,
        head_dim: int = 0,
        rotary_dim: int | None = None,
    ) -> Linear:
        """See Parameters."""
        own = self._inner.linear(names, in_features, rotated=rotated, head_dim=head_dim, rotary_dim=rotary_dim)
        return SummedLinear(own, self._ranks) if names[0][0].endswith(_SUMMED) else own

    def lookup(self, name: str, table: torch.Tensor) -> Lookup:
        """See Parameters; `table` has this rank's rows."""
        return SplitLookup(self._inner.lookup(name, table), self._vocab_size, self._ranks)

    def output(self, name: str, table: torch.Tensor | None, rows: int, columns: int) -> Linear:
        """See Parameters; the result has the logits of all ranks' rows."""
        return GatheredOutput(self._inner.output(name, table, rows, columns), self._vocab_size, self._ranks)


class SummedLinear:
    """A Linear whose inputs are split over ranks.

    Args:
        part: multiplies this rank's inputs.
        ranks: the sums over all ranks.
    """

    def __init__(self, part: Linear, ranks: Collectives) -> None:
        self._part, self._ranks = part, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' products [T, outputs]."""
        return self._ranks.sum_(self._part(x))


class GatheredOutput:
    """An output layer whose rows are split over ranks.

    Args:
        part: [hidden] -> the logits of this rank's rows.
        vocab_size: number of rows of all ranks.
        ranks: the exchanges with all ranks.
    """

    def __init__(self, part: Linear, vocab_size: int, ranks: Collectives) -> None:
        self._part, self._vocab_size, self._ranks = part, vocab_size, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32 of hidden states x [N, hidden]."""
        return gathered_logits(self._part(x), self._vocab_size, self._ranks)
