"""Device collectives: sums and gathers device tensors over the ranks. They are queued like kernels, and graphs record them.

Every rank receives all gathered parts, because every rank samples. NCCL computes them, or gloo where the device is host memory.
"""

import contextlib
from typing import Any

import torch

from tetrad.worker_svc.core.ranks import RankLost, Shard
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.layers.collectives import Collectives, GroupSums
from tetrad.worker_svc.layers.rendezvous import Rendezvous


class DeviceSums(GroupSums):
    """The exchanges of one process group of devices; see GroupSums. The host does not wait for NCCL."""

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's x, all of the same shape, on every rank; the host does not wait."""
        parts = [torch.empty_like(x) for _ in range(self._shard.size)]
        self._connections.current.allgather([parts], [x.contiguous()]).wait()
        return parts

    def leave(self) -> None:
        """See Sums; pending operations of this rank are aborted."""
        with contextlib.suppress(RankLost):  # it has left before
            abort(self._connections.current)
        super().leave()


class DeviceCollectives(Collectives):
    """The exchanges of one rank's device; see Collectives.

    Args:
        shard: the place of this rank.
        accelerator: the rank's device.
    """

    def __init__(self, shard: Shard, accelerator: Accelerator) -> None:
        def sum_once(group: Any) -> None:
            group.allreduce([torch.zeros(1, device=accelerator.device)]).wait()

        def open_sums(met: Rendezvous, name: str, group: Any, shard: Shard, timeout_s: float) -> DeviceSums:
            return DeviceSums(accelerator.process_group(met, name, group, timeout_s, sum_once), shard)

        super().__init__(shard, open_sums)


def abort(group: Any) -> None:
    """Abort the pending operations of a process group, and close its connections; works on any thread."""
    end = getattr(group, "abort", None)
    if end is not None:
        end()
