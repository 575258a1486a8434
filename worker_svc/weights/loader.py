"""Weight loader: what a model asks for its tensors while it is built. Checks shapes, counts, reports progress."""

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.weights.source import Progress, WeightSource


class WeightLoader:
    """Reads tensors from a source, each once.

    Args:
        source: opened files.
        report: told after each tensor how many of all bytes are loaded.
    """

    def __init__(self, source: WeightSource, report: Progress) -> None:
        self._source, self._report = source, report
        self._loaded_bytes = 0
        self.num_parameters = 0

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor of this name."""
        return self._source.has(name)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor in float32; ModelError if it is missing, broken or of another shape."""
        if not self._source.has(name):
            raise ModelError(f"The model's files have no tensor {name}.")
        tensor, stored_bytes = self._source.load(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"Tensor {name} has shape {tuple(tensor.shape)}, but the config asks for {shape}.")
        self._loaded_bytes += stored_bytes
        self.num_parameters += tensor.numel()
        self._report(self._loaded_bytes, self._source.total_bytes)
        return tensor
