"""Shared sums: sums tensors of ranks on the same machine, through shared memory; see src/shared_sums.h.

The memory is an anonymous file: the first rank creates it, and the others open it through /proc. The system deletes it when the
last process ends, even after a crash.
"""

import contextlib
import ctypes
import mmap
import os
import secrets
from typing import Any

import torch

from tetrad.services.log import get_logger
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.layers.collectives import GroupSums, Sums
from tetrad.worker_svc.layers.rendezvous import Rendezvous
from tetrad.worker_svc.native.structures import SumsPlace, SumStatus

_TOKEN_BYTES = 16
_MAX_RANKS = 64

log = get_logger()


class SharedSums:
    """Sums through shared memory; see Sums.

    Args:
        library: the native kernels.
        file: this rank's own descriptor of the memory; closed with this object.
        shard: the place of this rank.
        timeout_s: longest wait for another rank, in seconds.

    Attributes:
        function: address of the kernel that computes sums; its first argument is `place`.
        place: this rank's place in the memory.
    """

    def __init__(self, library: ctypes.CDLL, file: int, shard: Shard, timeout_s: float) -> None:
        self._library, self._file, self._shard, self._timeout_s = library, file, shard, timeout_s
        self._memory = mmap.mmap(file, os.fstat(file).st_size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.function = ctypes.cast(library.tetrad_sums_add, ctypes.c_void_p).value
        self.place = SumsPlace(memory=self._address, timeout_s=timeout_s, file=file, rank=shard.index, size=shard.size)

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """See Sums; only float32."""
        assert x.dtype == torch.float32, "ranks add up float32"
        x = x.contiguous()
        self.check(self._library.tetrad_sums_add(ctypes.byref(self.place), x.data_ptr(), x.numel()))
        return x

    def check(self, status: int) -> None:
        """Raise RuntimeError if the status is that of a failed sum."""
        if status != SumStatus.SUMMED:
            what = "is lost" if status == SumStatus.RANK_LOST else f"did not answer within {self._timeout_s:g} s"
            raise RuntimeError(f"A rank {what}: its part of a sum did not come.")

    def leave(self) -> None:
        """See Sums."""
        self._library.tetrad_sums_leave(self._address, self._shard.index)

    def __del__(self) -> None:
        os.close(self._file)


class SumsOfMachine:
    """Opens the sums of a stage: shared memory if all its ranks are on this machine, otherwise gloo. See OpenSums.

    Args:
        library: the native kernels.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __call__(self, met: Rendezvous, name: str, group: Any, shard: Shard, timeout_s: float) -> Sums:
        """See OpenSums; all ranks choose the same kind of sums."""
        file = self._open(met, name, shard)
        shared = None if file is None else SharedSums(self._library, file, shard, timeout_s)
        num_open = torch.tensor([0.0 if shared is None else 1.0])
        group.allreduce([num_open]).wait()
        if shared is None or num_open.item() < shard.size:
            log.info("sums.gloo", ranks=shard.size, reason="Not all ranks can map one memory")
            return GroupSums(group)
        log.info("sums.shared", ranks=shard.size)
        return shared

    def _open(self, met: Rendezvous, name: str, shard: Shard) -> int | None:
        """Return this rank's descriptor of the memory, locked; None if the memory is not available to it."""
        if shard.index == 0:
            token = secrets.token_bytes(_TOKEN_BYTES)
            file = self._make(shard.size, token)
            met.publish(name, "" if file is None else f"{os.getpid()} {file} {token.hex()}")
        else:
            file = _attached(met.published(name))
        if file is not None and self._library.tetrad_sums_join(file, shard.index) != 0:
            os.close(file)
            return None
        return file

    def _make(self, size: int, token: bytes) -> int | None:
        size_bytes: int = self._library.tetrad_sums_size_bytes(size)
        if not size_bytes or size > _MAX_RANKS or not hasattr(os, "memfd_create"):
            return None
        with contextlib.suppress(OSError):
            file = os.memfd_create("tetrad-sums")
            os.truncate(file, size_bytes)
            os.pwrite(file, token, size_bytes)
            return file
        return None


def _attached(place: str) -> int | None:
    """Open the memory of another process and return this rank's descriptor; None if the memory is not reachable.

    In another container, the process number may belong to an unrelated process, whose file does not have the token.
    """
    if not place:
        return None
    process, number, token = place.split()
    try:
        file = os.open(f"/proc/{int(process)}/fd/{int(number)}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.pread(file, _TOKEN_BYTES, max(0, os.fstat(file).st_size - _TOKEN_BYTES)) == bytes.fromhex(token):
            return file
    except OSError:
        pass  # a file without positions, such as a pipe, is not the memory
    os.close(file)
    return None
