"""Block contents: reads and writes whole KV blocks in a device's memory as bytes, for transfers between workers.

Used by the block exchange, on its own threads, beside the steps: copies run on a stream apart. The engine core lets no step use
the blocks of a transfer, and earlier steps that wrote to them have returned.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.cuda.device.accelerator import Accelerator


class DeviceBlockContents:
    """The blocks of a cache on a device; see BlockContents.

    Args:
        layers: the layers of the cache, each [num_blocks, bytes] uint8 of the same shape.
        accelerator: the device.
    """

    def __init__(self, layers: Sequence[torch.Tensor], accelerator: Accelerator) -> None:
        self._layers, self._accelerator = layers, accelerator
        self.block_bytes = len(layers) * layers[0].shape[1]

    def read(self, blocks: Ints) -> bytes:
        """Return the content of these blocks, [n, layers, bytes] row-major."""
        with self._accelerator.apart():
            ids = self._accelerator.upload(blocks)
            content = self._accelerator.download([torch.stack([layer.index_select(0, ids) for layer in self._layers], dim=1)])
        return content.wait()[0].tobytes()

    def write(self, blocks: Ints, content: bytes) -> None:
        """Overwrite these blocks. Raises ValueError if the content has another size."""
        values = np.frombuffer(content, np.uint8).reshape(len(blocks), len(self._layers), -1).copy()
        with self._accelerator.apart():
            ids, rows = self._accelerator.upload(blocks), self._accelerator.upload(values)
            for number, layer in enumerate(self._layers):
                layer.index_copy_(0, ids, rows[:, number])
