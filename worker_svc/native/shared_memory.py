"""Shared memory: a file in memory that the ranks of one machine map, for their sums and orders; see src/shared_memory.h.

The file is anonymous: the first rank creates it, and the others open it through /proc. The system deletes it when the last
process ends, even after a crash.
"""

import contextlib
import ctypes
import mmap
import os
import secrets

import torch

from tetrad.worker_svc.core.ranks import RankLost
from tetrad.worker_svc.layers.rendezvous import Rendezvous
from tetrad.worker_svc.native.structures import SharedPlace, SumStatus

_TOKEN_BYTES = 16
_MAX_RANKS = 64


class SharedMemory:
    """One rank's mapping of the memory.

    Args:
        file: this rank's own descriptor of the memory; closed with this object.
        rank, size: the number of this rank, and the number of ranks.
        timeout_s: longest wait for another rank, in seconds.

    Attributes:
        place: the argument of the kernels that use the memory.
    """

    def __init__(self, file: int, rank: int, size: int, timeout_s: float) -> None:
        self._file = file
        self._memory = mmap.mmap(file, os.fstat(file).st_size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.place = SharedPlace(memory=address, timeout_s=timeout_s, file=file, rank=rank, size=size)

    @property
    def reference(self) -> object:
        """The pointer to `place`."""
        return ctypes.byref(self.place)

    def check(self, status: int) -> None:
        """Raise RankLost if the status is that of a failed exchange."""
        if status != SumStatus.SUMMED:
            what = "is lost" if status == SumStatus.RANK_LOST else f"did not answer within {self.place.timeout_s:g} s"
            raise RankLost(f"A rank {what}: its part of an exchange did not come.")

    def __del__(self) -> None:
        os.close(self._file)


def open_memory(
    library: ctypes.CDLL, met: Rendezvous, name: str, group: object, place: tuple[int, int], size_bytes: int, timeout_s: float
) -> SharedMemory | None:
    """Open the memory of a group on all its ranks, which call this together; None if not all of them can map one memory.

    Args:
        library: the native kernels.
        met: the meeting point of the ranks.
        name: the name of the memory.
        group: the process group of the ranks.
        place: the number of this rank in the group, and the number of ranks.
        size_bytes: size of the memory.
        timeout_s: see SharedMemory.
    """
    rank, size = place
    file = _open(library, met, name, rank, size, size_bytes)
    memory = None if file is None else SharedMemory(file, rank, size, timeout_s)
    num_open = torch.tensor([0.0 if memory is None else 1.0])
    group.allreduce([num_open]).wait()  # type: ignore[attr-defined] # torch's types say less than its objects do
    return memory if num_open.item() == size else None


def _open(library: ctypes.CDLL, met: Rendezvous, name: str, rank: int, size: int, size_bytes: int) -> int | None:
    """Return this rank's descriptor of the memory, locked; None if the memory is not available to it."""
    if rank == 0:
        token = secrets.token_bytes(_TOKEN_BYTES)
        is_possible = size <= _MAX_RANKS and library.tetrad_shared_is_possible()
        file = make_file(name, size_bytes, token) if is_possible else None
        met.publish(name, "" if file is None else f"{os.getpid()} {file} {token.hex()}")
    else:
        file = _attached(met.published(name))
    if file is not None and library.tetrad_shared_join(file, rank) != 0:
        os.close(file)
        return None
    return file


def make_file(name: str, size_bytes: int, token: bytes) -> int | None:
    """Return the descriptor of a new file in memory, with the token behind its end; None if the system has no such files."""
    if not hasattr(os, "memfd_create"):
        return None
    with contextlib.suppress(OSError):
        file = os.memfd_create(f"tetrad-{name}")
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
