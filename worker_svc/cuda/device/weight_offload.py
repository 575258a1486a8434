"""Weight offload: layers whose matrices stay in pinned host memory and are on the device only while they run (cpu_offload_gb).

All offloaded layers share two buffers on the device, alternately. A second stream copies the next offloaded layer's matrices
while earlier layers compute.

    steps    | 0   1   2  | 3: A  | 4   5   6  | 7: B  | 8   9   10 | 11: A |
    beside     3 -> A ...   7 -> B ..... 11 -> A ..... 15 -> B .....

A step begins with empty buffers and ends when all its copies are done. So a CUDA graph of a step contains its copies, and a
failed step or a sleep between steps does not affect the next one. Vectors (norms, biases) stay on the device; they are small.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.host import available_memory_bytes
from tetrad.worker_svc.cuda.device.accelerator import Accelerator, Mark
from tetrad.worker_svc.cuda.device.host_copy import HostCopy, bytes_of
from tetrad.worker_svc.cuda.device.offload import tensors_in

Layer = TypeVar("Layer")

_NUM_BUFFERS = 2
_ALIGNMENT = 256


class WeightOffload:
    """The offloaded layers of one model, evenly spread; their number follows from the bytes to free.

    Attributes:
        size_bytes: the argument.

    Args:
        accelerator: the device that runs the layers.
        size_bytes: bytes to free on the device, minus the buffers; 0: no layer is offloaded. Too large a number offloads all.
        num_layers: the model's number of layers.
    """

    def __init__(self, accelerator: Accelerator, size_bytes: int, num_layers: int) -> None:
        self._accelerator, self.size_bytes, self._num_layers = accelerator, size_bytes, num_layers
        self._num_read = self._num_wanted = 0
        self._buffers: list[torch.Tensor] = []
        self._copies: list[HostCopy] = []
        self._number_of: dict[int, int] = {}
        """Index of a layer -> index of its copy."""

    @property
    def freed_bytes(self) -> int:
        """The bytes of device memory that offloading saves."""
        return sum(copy.size_bytes for copy in self._copies) - sum(buffer.nbytes for buffer in self._buffers)

    def take(self, layer: object, tensors: Sequence[torch.Tensor]) -> None:
        """Move a layer's matrices to the host if the layer is offloaded; called for every layer, in order, when it is loaded.

        Args:
            layer: an object that holds views of these tensors; the views are redirected to a buffer.
            tensors: all tensors that were loaded for the layer; not larger than the first layer's.

        Raises:
            ModelError: the host has too little memory.
        """
        index = self._num_read
        self._num_read += 1
        if not self.size_bytes:
            return
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors if each.dim() > 1}
        places, layer_bytes = _places(storages)
        if index == 0:
            self._plan(layer_bytes)
        is_due = self._num_wanted * (index + 1) // self._num_layers > self._num_wanted * index // self._num_layers
        if not is_due or layer_bytes > len(self._buffers[0]):
            return
        buffer = self._buffers[len(self._copies) % _NUM_BUFFERS]
        for address, storage in storages.items():
            buffer[places[address] :][: storage.nbytes()].copy_(bytes_of(storage))
        self._number_of[index] = len(self._copies)
        self._copies.append(HostCopy(self._accelerator, buffer[:layer_bytes]))
        for tensor in tensors_in((layer, tensors)):
            _move(tensor, places, buffer)

    def each(self, layers: Sequence[Layer]) -> Iterator[Layer]:
        """Yield the layers of a step in order; work queued before the next iteration finds the yielded layer's matrices."""
        arrivals = [self._fetch(number) for number in range(min(_NUM_BUFFERS, len(self._copies)))]
        for index, layer in enumerate(layers):
            number = self._number_of.get(index)
            if number is not None:
                self._accelerator.wait_for(arrivals[number])
            yield layer
            if number is not None and len(arrivals) < len(self._copies):
                arrivals.append(self._fetch(len(arrivals)))  # into the buffer of this layer

    def _plan(self, layer_bytes: int) -> None:
        """Choose the offloaded layers and allocate the buffers."""
        wanted = _NUM_BUFFERS + -(-self.size_bytes // layer_bytes)
        if self._num_layers <= _NUM_BUFFERS:
            wanted = 0  # the buffers would hold all layers permanently
        self._num_wanted = min(wanted, self._num_layers)
        needed, available = self._num_wanted * layer_bytes, available_memory_bytes()
        if needed > available:
            raise ModelError(
                f"cpu_offload_gb {self.size_bytes / (1 << 30):g} needs {needed} bytes of host memory "
                f"for {self._num_wanted} of {self._num_layers} layers; {available} are available."
            )
        size = layer_bytes if self._num_wanted else 0
        device = self._accelerator.device
        self._buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(_NUM_BUFFERS)]

    def _fetch(self, number: int) -> Mark:
        return self._accelerator.beside(partial(self._copies[number].write_to, self._buffers[number % _NUM_BUFFERS]))


def _places(storages: dict[int, torch.UntypedStorage]) -> tuple[dict[int, int], int]:
    """Return each storage's offset in a buffer, by the storage's address, and the total size in bytes."""
    places, size = {}, 0
    for address, storage in storages.items():
        places[address] = size
        size += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
    return places, size


def _move(tensor: torch.Tensor, places: dict[int, int], buffer: torch.Tensor) -> None:
    """Redirect a tensor to the same bytes in a buffer, if its storage has a place there."""
    place = places.get(tensor.untyped_storage().data_ptr())
    if place is not None:
        offset = place // tensor.element_size() + tensor.storage_offset()
        tensor.set_(buffer.untyped_storage(), offset, tensor.size(), tensor.stride())
