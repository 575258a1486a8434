"""Program sums: adds up the parts of a layer that the ranks of a native program have computed.

In memory that the ranks share, the kernels add. Otherwise the kernels call back into Python, and gloo adds.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.layers.collectives import Collectives, Sums
from tetrad.worker_svc.native.shared_sums import SharedSums
from tetrad.worker_svc.native.structures import AddUp, Step, SumStatus

Check = Callable[[int], None]
"""Raises the error of a run that returned a status; holds what the run needs until then."""


class ProgramSums(Protocol):
    """The sums of a program's runs."""

    def begin(self, step: Step) -> Check:
        """Write into a step how it adds up; the check is called behind its run."""


class NoSums:
    """Of a program that computes whole layers."""

    def begin(self, step: Step) -> Check:  # noqa: ARG002 - of the protocol
        """See ProgramSums."""
        return _accept


class RankSums:
    """Of a program with a part of each layer; see ProgramSums.

    Args:
        ranks: all of them. A group that is rebuilt may add up in another way.
    """

    def __init__(self, ranks: Collectives) -> None:
        self._ranks = ranks

    def begin(self, step: Step) -> Check:
        """See ProgramSums."""
        sums = self._ranks.sums
        if isinstance(sums, SharedSums):
            step.add_up, step.ranks = sums.function, ctypes.addressof(sums.place)
            return sums.check
        called = _CalledSums(sums)
        step.add_up = ctypes.cast(called.function, ctypes.c_void_p).value
        return called.check


class _CalledSums:
    """Sums in Python, for one run; on any thread."""

    def __init__(self, sums: Sums) -> None:
        self._sums, self._error = sums, Exception("a sum over ranks failed")
        self.function = AddUp(self._add_up)

    def check(self, status: int) -> None:
        """See Check."""
        if status != SumStatus.SUMMED:
            raise self._error

    def _add_up(self, _: object, values: object, count: int) -> int:
        try:
            self._sums.sum_(torch.from_numpy(np.ctypeslib.as_array(values, (count,))))
        except Exception as error:  # noqa: BLE001 - raised behind the run: it cannot pass through C
            self._error = error
            return SumStatus.FAILED
        return SumStatus.SUMMED


def _accept(_: int) -> None:
    """See Check."""


@dataclass(frozen=True, slots=True)
class Share:
    """How much of a model's layers and vocabulary a program has.

    Attributes:
        shard: which part of how many.
        vocab_size: of the whole model.
        sums: over the parts.
    """

    shard: Shard
    vocab_size: int
    sums: ProgramSums

    @property
    def is_whole(self) -> bool:
        """Whether there are no other parts."""
        return self.shard.size == 1

    @property
    def first_id(self) -> int:
        """The first token of the vocabulary's part."""
        return self.shard.bounds(self.vocab_size)[0]


WHOLE = Share(Shard(0, 1), 0, NoSums())
"""Of a program that has all."""
