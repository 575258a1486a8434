"""Memory of the native kernels: aligned arrays, and weights in huge pages.

A step reads every weight once. With pages of 4 KiB, each page costs a lookup in the page table at every step, which is slow on
a virtual machine. A huge page (2 MiB on x86-64) costs one lookup for 512 times the bytes.
"""

import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 64
"""Bytes of a cache line."""
_HUGE_PAGE = 2 << 20
_CHUNK = 64 << 20
"""Bytes of address space that are reserved at once; the system provides a page when it is first written."""

Bytes = npt.NDArray[np.uint8]


def aligned_zeros(size_bytes: int) -> Bytes:
    """Return zeros aligned to a cache line, so that no vector crosses two cache lines."""
    return _aligned(np.zeros(size_bytes + _ALIGNMENT, np.uint8), _ALIGNMENT)[:size_bytes]


class WeightMemory:
    """Memory for arrays that live as long as each other, such as the weights of a model; used by one thread at a time.

    Arrays lie one after the other. A chunk of memory is freed with its last array.

    Args:
        size_bytes: the number of bytes that will be needed, if it is known.
    """

    def __init__(self, size_bytes: int = _CHUNK) -> None:
        self._chunk_bytes = size_bytes
        self._free: Bytes = np.empty(0, np.uint8)

    def zeros(self, size_bytes: int) -> Bytes:
        """Return zeros aligned to a cache line."""
        taken = room_for(size_bytes)
        if taken > len(self._free):
            self._free = _huge_pages(max(taken, self._chunk_bytes))
        found, rest = self._free[:size_bytes], self._free[taken:]
        self._free = rest if len(rest) else np.empty(0, np.uint8)  # an empty rest would keep the whole chunk
        return found


def room_for(size_bytes: int) -> int:
    """Return the number of bytes that an array takes in a WeightMemory."""
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _huge_pages(size_bytes: int) -> Bytes:
    """Return zeros that begin at a huge page; the system uses huge pages if it has them."""
    memory = mmap.mmap(-1, size_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the kernel was built without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return _aligned(np.frombuffer(memory, np.uint8), _HUGE_PAGE)[:size_bytes]


def _aligned(data: Bytes, alignment: int) -> Bytes:
    return data[-data.ctypes.data % alignment :]
