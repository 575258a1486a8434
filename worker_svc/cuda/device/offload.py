"""Offload: moves tensors from the device to host memory and back, and keeps the tensor objects.

The storage of a tensor is freed and later filled again, so views of the same storage (tied embeddings, parts of a fused weight)
stay views, and all references to a tensor stay valid. Addresses change: captured graphs become invalid. Called by a loaded
model that goes to sleep, on the compute thread, while no step runs.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.device.host_copy import HostCopy, bytes_of


class Offload:
    """Tensors of one device that move together.

    Args:
        accelerator: the device with the tensors.
        tensors: the tensors; several may share a storage, and a tensor may appear twice.
    """

    def __init__(self, accelerator: Accelerator, tensors: Iterable[torch.Tensor]) -> None:
        self._accelerator = accelerator
        storages = (tensor.untyped_storage() for tensor in tensors if tensor.device == accelerator.device)
        # On a device, all storages can be resized; on the host, storages of files or of other libraries do not move.
        found = {storage.data_ptr(): storage for storage in storages if storage.nbytes() and storage.resizable()}
        self._storages = list(found.values())
        self._copies: list[HostCopy] | None = None

    @property
    def size_bytes(self) -> int:
        """The size of the tensors in bytes, on the device or on the host; shared storage is counted once."""
        return sum(copy.size_bytes for copy in self._copies) if self._copies else sum(each.nbytes() for each in self._storages)

    def sleep(self) -> None:
        """Copy the tensors to pinned host memory and free their device memory; do nothing if they are asleep.

        The tensors must not be read before `wake_up`.
        """
        if self._copies is not None:
            return
        self._copies = [HostCopy(self._accelerator, bytes_of(storage)) for storage in self._storages]
        for storage in self._storages:
            storage.resize_(0)

    def wake_up(self) -> None:
        """Copy the tensors back to the device; do nothing if they are awake.

        Raises torch.OutOfMemoryError, with all tensors still asleep, if the device has too little free memory.
        """
        if self._copies is None:
            return
        try:
            for storage, copy in zip(self._storages, self._copies, strict=True):
                storage.resize_(copy.size_bytes)
        except torch.OutOfMemoryError:
            for storage in self._storages:
                storage.resize_(0)
            raise
        for storage, copy in zip(self._storages, self._copies, strict=True):
            copy.write_to(bytes_of(storage))
        self._copies = None


def wake_weights(weights: Offload, accelerator: Accelerator) -> None:
    """Move a model's weights back; raise FailedPrecondition, with the numbers, if the device has too little free memory."""
    try:
        weights.wake_up()
    except torch.OutOfMemoryError as error:
        free, total = accelerator.memory()
        raise FailedPrecondition(
            f"The weights need {weights.size_bytes} bytes to wake up; {free} of the device's {total} are free."
        ) from error


def tensors_in(root: object) -> Iterator[torch.Tensor]:
    """Yield every tensor that an object of this package holds in its attributes and containers, each once or more."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        item = pending.pop()
        if isinstance(item, torch.Tensor):
            yield item
        elif id(item) not in seen:
            seen.add(id(item))
            pending.extend(_held_by(item))


def _held_by(item: object) -> Iterable[object]:
    if isinstance(item, Mapping):
        return item.values()
    if isinstance(item, list | tuple | set | frozenset):
        return item
    if not type(item).__module__.startswith("tetrad."):
        return ()
    slots = [name for cls in type(item).__mro__ for name in getattr(cls, "__slots__", ())]
    return (
        [*vars(item).values()] if hasattr(item, "__dict__") else [getattr(item, name) for name in slots if hasattr(item, name)]
    )
