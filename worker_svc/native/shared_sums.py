"""Shared sums: sums and gathers tensors of ranks on the same machine, through shared memory; see src/shared_sums.h."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from tetrad.services.log import get_logger
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.layers.collectives import GroupSums, Sums
from tetrad.worker_svc.layers.rendezvous import Rendezvous
from tetrad.worker_svc.native.shared_memory import SharedMemory, open_memory

log = get_logger()


class SharedSums:
    """Sums through shared memory; see Sums.

    Args:
        library: the native kernels.
        memory: the memory that the ranks share.

    Attributes:
        function: address of the kernel that computes sums; its first argument is `place`.
        place: this rank's place in the memory.
        check: raises RankLost if the status of a sum is that of a failed one.
    """

    def __init__(self, library: ctypes.CDLL, memory: SharedMemory) -> None:
        self._library, self._memory = library, memory
        self.function = ctypes.cast(library.tetrad_sums_add, ctypes.c_void_p).value
        self.place = memory.place
        self.check: Callable[[int], None] = memory.check

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """See Sums; only float32."""
        assert x.dtype == torch.float32, "ranks add up float32"
        x = x.contiguous()
        self.check(self._library.tetrad_sums_add(self._memory.reference, x.data_ptr(), x.numel()))
        return x

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """See Sums."""
        x = x.contiguous()
        found = x.new_empty((self.place.size, *x.shape)) if self.place.rank == 0 else None
        address = None if found is None else found.data_ptr()
        self.check(self._library.tetrad_sums_gather(self._memory.reference, x.data_ptr(), x.nbytes, address))
        return [] if found is None else list(found)

    def leave(self) -> None:
        """See Sums."""
        self._library.tetrad_sums_leave(self._memory.reference)


class SumsOfMachine:
    """Opens the sums of a stage: shared memory if all its ranks are on this machine, otherwise gloo. See OpenSums.

    Args:
        library: the native kernels.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __call__(self, met: Rendezvous, name: str, group: Any, shard: Shard, timeout_s: float) -> Sums:
        """See OpenSums; all ranks choose the same kind of sums."""
        size_bytes = self._library.tetrad_sums_size_bytes(shard.size)
        memory = open_memory(self._library, met, name, group, (shard.index, shard.size), size_bytes, timeout_s)
        if memory is None:
            log.info("sums.gloo", ranks=shard.size, reason="Not all ranks can map one memory")
            return GroupSums(group, shard)
        log.info("sums.shared", ranks=shard.size)
        return SharedSums(self._library, memory)
