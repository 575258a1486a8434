"""Encoder weights: reads an encoder's tensors by its family's names, with the prefix that the files use."""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.checkpoint.placed import FloatWeights
from tetrad.worker_svc.model_facts.encoder import EncoderConfig, Part

Parameters = tuple[torch.Tensor, torch.Tensor | None]
"""A matrix [outputs, inputs] and its bias."""


class EncoderWeights:
    """The tensors of one encoder; raises ModelError if a tensor is missing or of another shape.

    Attributes:
        names: the names in the files.
        device: device of the tensors.
        prefix: prefix of the names in these files.

    Args:
        config: the names and sizes of the encoder.
        weights: the tensors of the files.
    """

    def __init__(self, config: EncoderConfig, weights: FloatWeights) -> None:
        self._config, self._weights = config, weights
        names, self.device = config.names, weights.device
        self.names = names
        found = (prefix for prefix in names.prefixes if weights.has(f"{prefix}{names.words}.weight"))
        self.prefix = next(found, names.prefixes[0])
        self._whole: tuple[str, torch.Tensor] = ("", torch.empty(0))

    def table(self, name: str, num_rows: int) -> torch.Tensor:
        """Return an embedding table [num_rows, hidden_size]."""
        return self._weights.get(f"{self.prefix}{name}.weight", (num_rows, self._config.hidden_size))

    def norm(self, name: str) -> Parameters:
        """Return weight and bias of a LayerNorm over the hidden size."""
        size, name = self._config.hidden_size, f"{self.prefix}{name}"
        # Checkpoints that were converted from TensorFlow have TensorFlow's names.
        old = self._weights.has(f"{name}.gamma")
        weight = self._weights.get(f"{name}.{'gamma' if old else 'weight'}", (size,))
        return weight, self._weights.get(f"{name}.{'beta' if old else 'bias'}", (size,)) if self._has_bias("norm") else None

    def matrix(self, kind: str, name: str, num_outputs: int, num_inputs: int) -> Parameters:
        """Return a matrix and its bias; `kind` is the part in the config's biases."""
        return self.joined(kind, (Part(name),), 0, num_outputs, num_inputs)

    def joined(self, kind: str, parts: Sequence[Part], layer: int, num_outputs: int, num_inputs: int) -> Parameters:
        """Concatenate parts with `num_outputs` rows each, and their biases."""
        weights, biases = [], []
        for part in parts:
            name = f"{self.prefix}{part.name.format(layer)}"
            rows = slice(part.place * num_outputs, (part.place + 1) * num_outputs)
            weights.append(self._read(f"{name}.weight", (part.parts * num_outputs, num_inputs))[rows])
            if self._has_bias(kind):
                biases.append(self._weights.get(f"{name}.bias", (part.parts * num_outputs,))[rows])
        return torch.cat(weights), torch.cat(biases) if biases else None

    def _has_bias(self, kind: str) -> bool:
        return kind in self._config.biases

    def _read(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        """Return a tensor, and keep it for its next part."""
        if self._whole[0] != name:
            self._whole = name, self._weights.get(name, shape)
        return self._whole[1]
