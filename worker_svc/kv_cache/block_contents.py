"""Block contents: reads and writes whole KV blocks in host memory as bytes, for transfers between workers.

Used by the block exchange, on its own threads, beside the steps of the compute thread: the engine core lets no step use the
blocks of a transfer.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints


class HostBlockContents:
    """The blocks of a cache in host memory; see BlockContents.

    Args:
        layers: the layers of the cache, each [num_blocks, bytes] uint8 of the same shape.
    """

    def __init__(self, layers: Sequence[torch.Tensor]) -> None:
        self._layers = [layer.numpy() for layer in layers]
        self.block_bytes = len(layers) * layers[0].shape[1]

    def read(self, blocks: Ints) -> bytes:
        """Return the content of these blocks, [n, layers, bytes] row-major."""
        return np.stack([layer[blocks] for layer in self._layers], axis=1).tobytes()

    def write(self, blocks: Ints, content: bytes) -> None:
        """Overwrite these blocks. Raises ValueError if the content has another size."""
        values = np.frombuffer(content, np.uint8).reshape(len(blocks), len(self._layers), -1)
        for number, layer in enumerate(self._layers):
            layer[blocks] = values[:, number]
