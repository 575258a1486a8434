"""Host copy: a copy of device bytes in pinned host memory, for sleeping models and offloaded weights."""

import torch

from tetrad.worker_svc.cuda.device.accelerator import Accelerator

_PIECE_BYTES = 1 << 26
"""Size of a piece of pinned memory. Sizes are rounded up to a power of two: one piece could take twice the copy's size."""


class HostCopy:
    """A copy of bytes, queued by the constructor; only work that is queued later may change the bytes.

    Args:
        accelerator: the device with the bytes.
        source: [bytes] uint8, on the device.
    """

    def __init__(self, accelerator: Accelerator, source: torch.Tensor) -> None:
        self.size_bytes = len(source)
        starts = range(0, self.size_bytes, _PIECE_BYTES)
        self._pieces = [accelerator.host_memory(min(_PIECE_BYTES, self.size_bytes - start)) for start in starts]
        for start, piece in zip(starts, self._pieces, strict=True):
            piece.copy_(source[start : start + len(piece)], non_blocking=True)

    def write_to(self, target: torch.Tensor) -> None:
        """Queue the copy back to the begin of target [bytes] uint8, without waiting for it."""
        self.write_part(target[: self.size_bytes], 0)

    def write_part(self, target: torch.Tensor, begin: int) -> None:
        """Queue the copy back of the bytes from `begin` on, as many as fill target [bytes] uint8, without waiting for it."""
        end = begin + len(target)
        for index, piece in enumerate(self._pieces):
            first = index * _PIECE_BYTES
            low, high = max(begin, first), min(end, first + len(piece))
            if low < high:
                target[low - begin : high - begin].copy_(piece[low - first : high - first], non_blocking=True)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage as a tensor [bytes] uint8."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
