"""Collectives: how the shards of a stage add up and gather tensors, over torch.distributed (gloo).

Held by layers for as long as the process lives; a group that is rebuilt replaces the connections inside. Sums are the same bits
on every rank.
"""

from typing import Any

import torch
import torch.distributed as dist

from tetrad.worker_svc.core.ranks import Shard


class Collectives:
    """The exchanges of one rank with the others of its stage.

    Attributes:
        shard: of this rank.
        group: their process group; None: the rank is in no group.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.group: Any = None  # torch's types say less than its objects do

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x, in place."""
        assert self.group is not None, "the rank is in no group"
        x = x.contiguous()
        self.group.allreduce([x]).wait()
        return x

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's x, of one shape, on the first shard; nothing on the others."""
        assert self.group is not None, "the rank is in no group"
        options = dist.GatherOptions()
        options.rootRank = 0
        found = [torch.empty_like(x) for _ in range(self.shard.size)] if self.shard.index == 0 else []
        self.group.gather([found] if found else [], [x.contiguous()], options).wait()
        return found
