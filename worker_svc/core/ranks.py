"""Ranks: a worker's place in a group of workers that compute one model, and the leader's messages to the members.

A pipeline has stages, each with some of the layers; a stage has shards, each with a part of every layer of the stage. Rank 0,
shard 0 of stage 0, is the leader: it receives plans, samples tokens and returns results. The other ranks, the members,
execute the leader's orders. Which layers a stage has is the device's choice. Knows no tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

DEFAULT_TIMEOUT_S = 60.0
EXPERTS_LOST = "EXPERTS_LOST"
"""Reason of a step that failed, perhaps because a worker of another engine, which has experts of the model, is lost."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of each layer that a rank holds: part `index` of `size`."""

    index: int
    size: int

    def bounds(self, total: int) -> tuple[int, int]:
        """Return the begin and the end of this rank's part of `total` rows; parts differ by at most one row."""
        return self.index * total // self.size, (self.index + 1) * total // self.size


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers that a rank holds: those of stage `index` of `size`."""

    index: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the first stage, which holds the input embeddings."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether this is the last stage, after whose layers hidden states are those of the whole model."""
        return self.index == self.size - 1


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A rank's place in a group; the shards of a stage have consecutive ranks.

    Attributes:
        shard: the shard of this rank.
        epoch: number of the group's version; it changes whenever a member is replaced.
        addresses: the ranks' addresses, by rank; the ranks connect to each other through the first one.
        timeout_s: longest wait for the other ranks to join, in seconds.
        stage: the stage of this rank.
        is_wanted: returns whether the rank should still wait for the others; False: it has to join another group. Thread-safe.
    """

    shard: Shard
    epoch: int
    addresses: Sequence[str]
    timeout_s: float = DEFAULT_TIMEOUT_S
    stage: Stage = Stage()
    is_wanted: Callable[[], bool] = field(default=lambda: True, compare=False)

    @property
    def rank(self) -> int:
        """The number of this rank; 0 is the leader."""
        return self.stage.index * self.shard.size + self.shard.index

    @property
    def size(self) -> int:
        """The number of ranks in the group."""
        return self.stage.size * self.shard.size

    @property
    def option(self) -> str:
        """The name and value of the option that requires several ranks, for messages."""
        if self.stage.size > 1:
            return f"pipeline_parallel_size {self.stage.size}"
        return f"tensor_parallel_size {self.shard.size}"


class RankLost(RuntimeError):
    """Another rank of the group is lost, or did not answer in time."""


Order = Any
"""One order of the leader, of a type that the device defines."""


class Orders(Protocol):
    """The orders of one group's leader to a member."""

    @property
    def are_current(self) -> bool:
        """Whether the worker has joined no other group since; called on the compute thread."""

    def receive(self) -> Order:
        """Wait for the next order; called on a thread that may block. Raises ConnectionError if the group has ended."""

    def end(self) -> None:
        """Leave the group, so that no other rank waits for this one."""


@runtime_checkable
class ObedientRunner(Protocol):
    """The runner of a member."""

    def obey(self, order: Order) -> None:
        """Execute an order: compute this rank's part of the leader's step; called on the compute thread."""
