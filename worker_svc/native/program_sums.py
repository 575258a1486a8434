"""Program sums: sums the parts of a layer that the ranks of a native program have computed.

If the ranks share memory, the kernels compute the sums. Otherwise the kernels call back into Python, and gloo computes them.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.layers.collectives import Collectives, Sums
from tetrad.worker_svc.native.shared_sums import SharedSums
from tetrad.worker_svc.native.structures import AddUp, Step, SumStatus

Check = Callable[[int], None]
"""Function that raises the error for a run's status, if any. It holds references to objects that the run needs."""


class ProgramSums(Protocol):
    """The sums of a program's runs."""

    def begin(self, step: Step) -> Check:
        """Set the summing function of a step; return the check to call after the step's run."""


class NoSums:
    """The ProgramSums of a program that computes whole layers."""

    def begin(self, step: Step) -> Check:  # noqa: ARG002 - of the protocol
        """See ProgramSums."""
        return _accept


class RankSums:
    """The ProgramSums of a program with a part of each layer.

    Args:
        ranks: the sums of the group. A rebuilt group may compute them in another way.
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
        step.add_up = called.address
        return called.check


class _CalledSums:
    """Sums in Python, for one run; works on any thread.

    It is part of no reference cycle, which would keep the connections of a lost group open until a garbage collection: the
    leader could not open its port for the next group.
    """

    def __init__(self, sums: Sums) -> None:
        self._errors: list[Exception] = []
        self._function = AddUp(partial(_add_up, sums, self._errors))

    @property
    def address(self) -> int | None:
        """Address of the function."""
        return ctypes.c_void_p.from_buffer(self._function).value  # ctypes.cast would make a reference cycle

    def check(self, status: int) -> None:
        """See Check."""
        if status != SumStatus.SUMMED:
            raise self._errors.pop() if self._errors else Exception("a sum over ranks failed")


def _add_up(sums: Sums, errors: list[Exception], _: object, values: object, count: int) -> int:
    try:
        sums.sum_(torch.from_numpy(np.ctypeslib.as_array(values, (count,))))
    except Exception as error:  # noqa: BLE001 - raised after the run: it cannot pass through C
        errors.append(error.with_traceback(None))  # the traceback refers to the errors
        return SumStatus.FAILED
    return SumStatus.SUMMED


def _accept(_: int) -> None:
    """See Check."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a model's layers and vocabulary that a program has.

    Attributes:
        shard: the index of the part, and the number of parts.
        vocab_size: vocabulary size of the whole model.
        sums: the sums over the parts.
    """

    shard: Shard
    vocab_size: int
    sums: ProgramSums

    @property
    def is_whole(self) -> bool:
        """Whether the program has the whole model."""
        return self.shard.size == 1

    @property
    def first_id(self) -> int:
        """The first token id of this part of the vocabulary."""
        return self.shard.bounds(self.vocab_size)[0]


WHOLE = Share(Shard(0, 1), 0, NoSums())
"""The share of a program that has the whole model."""
