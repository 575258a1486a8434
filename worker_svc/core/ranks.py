"""Ranks: a worker's place in a group that computes one model together, and the messages from the leader to its members.

A pipeline has stages, each with some of the layers; a stage has shards, each with a part of its layers. Rank 0, shard 0 of the
first stage, is the leader: it gets plans, samples and answers. The others, the members, run the leader's orders. Knows no
tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

DEFAULT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of each of its layers a rank has: part `index` of `size`."""

    index: int
    size: int

    def bounds(self, total: int) -> tuple[int, int]:
        """Return where this rank's part of `total` rows begins and ends; parts differ by at most one row."""
        return self.index * total // self.size, (self.index + 1) * total // self.size


@dataclass(frozen=True, slots=True)
class Stage:
    """Which layers a rank has: those of stage `index` of `size`."""

    index: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether it has the vocabulary, for what comes in and for what goes out."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether its hidden states go back to the leader."""
        return self.index == self.size - 1


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A rank's place in a group; the shards of a stage are ranks one after another.

    Attributes:
        shard: this rank's.
        epoch: of the group; changes whenever a member is replaced.
        addresses: by rank; the first one's decides where the ranks meet.
        timeout_s: longest wait for the other ranks to come.
        stage: this rank's.
    """

    shard: Shard
    epoch: int
    addresses: Sequence[str]
    timeout_s: float = DEFAULT_TIMEOUT_S
    stage: Stage = Stage()

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.stage.index * self.shard.size + self.shard.index

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.stage.size * self.shard.size

    @property
    def option(self) -> str:
        """The option that asks for several ranks, with its value."""
        if self.stage.size > 1:
            return f"pipeline_parallel_size {self.stage.size}"
        return f"tensor_parallel_size {self.shard.size}"


Order = Any
"""One order of the leader; the device's own."""


class Orders(Protocol):
    """The orders of one group's leader to a member."""

    @property
    def are_current(self) -> bool:
        """Whether the worker has joined no group since; on the compute thread."""

    def receive(self) -> Order:
        """Wait for the next order, on a thread that may wait; ConnectionError if the group is over."""

    def end(self) -> None:
        """Leave the group, so that no rank waits for this one."""


@runtime_checkable
class ObedientRunner(Protocol):
    """The runner of a member."""

    def obey(self, order: Order) -> None:
        """Compute this rank's part of what the leader computes; on the compute thread."""
