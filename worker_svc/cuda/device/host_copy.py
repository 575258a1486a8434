"""Host copy: bytes of the device in pinned host memory, for sleeping and for offloaded weights."""

import torch

from tetrad.worker_svc.cuda.device.accelerator import Accelerator

_PIECE_BYTES = 1 << 26
"""Pinned memory is rounded up to a power of two: in one piece, a copy could take twice its size."""


class HostCopy:
    """A copy of bytes, queued where it is made; the bytes may be written over by what is queued behind.

    Args:
        accelerator: where they are.
        source: [bytes] uint8, on the device.
    """

    def __init__(self, accelerator: Accelerator, source: torch.Tensor) -> None:
        self.size_bytes = len(source)
        starts = range(0, self.size_bytes, _PIECE_BYTES)
        self._pieces = [accelerator.host_memory(min(_PIECE_BYTES, self.size_bytes - start)) for start in starts]
        for start, piece in zip(starts, self._pieces, strict=True):
            piece.copy_(source[start : start + len(piece)], non_blocking=True)

    def write_to(self, target: torch.Tensor) -> None:
        """Queue the copy back, to the first of target [bytes] uint8, without waiting for it."""
        self.write_part(target[: self.size_bytes], 0)

    def write_part(self, target: torch.Tensor, begin: int) -> None:
        """Queue the copy back of the bytes from `begin` on that fill target [bytes] uint8, without waiting for it."""
        end = begin + len(target)
        for index, piece in enumerate(self._pieces):
            first = index * _PIECE_BYTES
            low, high = max(begin, first), min(end, first + len(piece))
            if low < high:
                target[low - begin : high - begin].copy_(piece[low - first : high - first], non_blocking=True)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage as a tensor [bytes] uint8."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
