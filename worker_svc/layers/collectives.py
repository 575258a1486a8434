"""Collectives: sums and gathers tensors over the shards of a stage.

Layers hold a Collectives object for the lifetime of the process; a rebuilt group replaces the connections inside. Sums are bit
for bit the same on every rank. torch.distributed (gloo) computes them, or ranks on one machine compute them in shared memory.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist

from tetrad.services.errors import one_line
from tetrad.worker_svc.core.ranks import RankLost, Shard
from tetrad.worker_svc.layers.rendezvous import Rendezvous


class Sums(Protocol):
    """Sums and gathers tensors over the ranks of one group. Raises RankLost if a rank is lost."""

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x, in place if x is contiguous."""

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's x, all of the same shape, on the first shard; return an empty list on the others."""

    def leave(self) -> None:
        """Leave the group, so that no rank waits for this one; works on any thread."""


class OpenSums(Protocol):
    """Function that chooses how the ranks of a group compute sums; all ranks call it together."""

    def __call__(self, met: Rendezvous, name: str, group: Any, shard: Shard, timeout_s: float) -> Sums:
        """Return the sums over the ranks of `group`, whose name is `name`; a wait takes at most `timeout_s` seconds."""


class Connections:
    """The connections of one rank: a process group of torch, which closes them when the last reference to it is dropped.

    Sums, orders and hidden states hold a Connections, not the process group itself. The error of a lost rank refers to the
    frames of the exchange for some time: if these referred to the process group, the ranks could not meet again in that time.

    Args:
        group: the process group.
    """

    def __init__(self, group: Any) -> None:
        self._group = group  # torch's types say less than its objects do

    @property
    def current(self) -> Any:
        """The process group; raises RankLost if the connections are closed."""
        if self._group is None:
            raise RankLost("This rank has left the group.")
        return self._group

    def close(self) -> None:
        """Close the connections, if necessary at the end of an exchange; works on any thread."""
        self._group = None


class GroupSums:
    """Sums that a process group of torch computes; see Sums.

    Args:
        group: the process group.
        shard: the place of this rank.
    """

    def __init__(self, group: Any, shard: Shard) -> None:
        self._connections, self._shard = Connections(group), shard

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """See Sums."""
        x = x.contiguous()
        with finding_losses():
            self._connections.current.allreduce([x]).wait()
        return x

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """See Sums."""
        options = dist.GatherOptions()
        options.rootRank = 0
        found = [torch.empty_like(x) for _ in range(self._shard.size)] if self._shard.index == 0 else []
        with finding_losses():
            self._connections.current.gather([found] if found else [], [x.contiguous()], options).wait()
        return found

    def leave(self) -> None:
        """See Sums."""
        self._connections.close()


@contextlib.contextmanager
def finding_losses() -> Iterator[None]:
    """Raise RankLost where an exchange of torch fails."""
    try:
        yield
    except RankLost:
        raise
    except RuntimeError as error:
        raise RankLost(f"A rank is lost: {one_line(error)}.") from error


def gloo_sums(met: Rendezvous, name: str, group: Any, shard: Shard, timeout_s: float) -> Sums:  # noqa: ARG001 - of OpenSums
    """See OpenSums."""
    return GroupSums(group, shard)


class Collectives:
    """The exchanges of one rank with the other ranks of its stage.

    Args:
        shard: the place of this rank.
        open_sums: chooses how the ranks compute sums.
    """

    def __init__(self, shard: Shard, open_sums: OpenSums = gloo_sums) -> None:
        self.shard, self._open_sums = shard, open_sums
        self._sums: Sums | None = None

    def connect(self, met: Rendezvous, name: str, timeout_s: float) -> None:
        """Connect to the other ranks, which call this as well; raise DeadlineExceeded or Unavailable if that fails."""
        group = met.connect(name, self.shard.index, self.shard.size, timeout_s)
        self._sums = self._open_sums(met, name, group, self.shard, timeout_s)

    def disconnect(self) -> None:
        """Leave the group: pending calls of other ranks fail."""
        if self._sums is not None:
            self._sums.leave()
        self._sums = None

    @property
    def sums(self) -> Sums:
        """The sums of the current group."""
        assert self._sums is not None, "the rank is in no group"
        return self._sums

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x, in place."""
        return self.sums.sum_(x)

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's x, all of the same shape, on the first shard; return an empty list on the others."""
        return self.sums.gather(x)
