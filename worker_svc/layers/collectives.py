"""Collectives: how the shards of a stage add up and gather tensors.

Held by layers for as long as the process lives; a group that is rebuilt replaces the connections inside. Sums are the same bits
on every rank. They are made by torch.distributed (gloo), or in memory that the ranks of one machine share.
"""

from typing import Any, Protocol

import torch
import torch.distributed as dist

from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.layers.rendezvous import Rendezvous


class Sums(Protocol):
    """Adds up what the ranks of one group have."""

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x, in place if x is contiguous; RuntimeError if a rank is lost."""

    def leave(self) -> None:
        """End the wait of any rank for this one; on any thread."""


class OpenSums(Protocol):
    """Chooses how the ranks of a group add up; all of them call it together."""

    def __call__(self, met: Rendezvous, name: str, group: Any, shard: Shard, timeout_s: float) -> Sums:
        """Return the sums of the ranks that `group` connects; `name` is of their group, `timeout_s` the longest wait."""


class GlooSums:
    """See Sums.

    Args:
        group: the process group.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """See Sums."""
        x = x.contiguous()
        self._group.allreduce([x]).wait()
        return x

    def leave(self) -> None:
        """See Sums: the connections close with the group."""


def gloo_sums(met: Rendezvous, name: str, group: Any, shard: Shard, timeout_s: float) -> Sums:  # noqa: ARG001 - of OpenSums
    """See OpenSums."""
    return GlooSums(group)


class Collectives:
    """The exchanges of one rank with the others of its stage.

    Args:
        shard: of this rank.
        open_sums: chooses how they add up.
    """

    def __init__(self, shard: Shard, open_sums: OpenSums = gloo_sums) -> None:
        self.shard, self._open_sums = shard, open_sums
        self._group: Any = None  # torch's types say less than its objects do
        self._sums: Sums | None = None

    def connect(self, met: Rendezvous, name: str, timeout_s: float) -> None:
        """Connect with the others, which call this as well; DeadlineExceeded or Unavailable if that cannot be."""
        group = met.connect(name, self.shard.index, self.shard.size, timeout_s)
        self._sums, self._group = self._open_sums(met, name, group, self.shard, timeout_s), group

    def disconnect(self) -> None:
        """Leave the others: what they wait for fails."""
        if self._sums is not None:
            self._sums.leave()
        self._sums = self._group = None

    @property
    def sums(self) -> Sums:
        """The present group's."""
        assert self._sums is not None, "the rank is in no group"
        return self._sums

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x, in place."""
        return self.sums.sum_(x)

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's x, of one shape, on the first shard; nothing on the others."""
        assert self._group is not None, "the rank is in no group"
        options = dist.GatherOptions()
        options.rootRank = 0
        found = [torch.empty_like(x) for _ in range(self.shard.size)] if self.shard.index == 0 else []
        self._group.gather([found] if found else [], [x.contiguous()], options).wait()
        return found
