"""Heads: compute an embedding or the probabilities of classes from a pooled row, in float32, on any device."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.checkpoint.pooler_config import Activation
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.layers.linear import Linear

Layer = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[Activation, Layer] = {
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "tanh": torch.tanh,
}


class DenseLayer:
    """A Dense layer of the sentence-transformers library.

    Args:
        linear: the product.
        activation: the activation after the product.
    """

    def __init__(self, linear: Linear, activation: Layer) -> None:
        self._linear, self._activation = linear, activation

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        """Return the outputs [..., outputs] for rows [..., inputs]."""
        return self._activation(self._linear(row))


class EmbeddingHead:
    """A head that applies dense layers, cuts the embedding to `dimensions`, and scales it to length 1 (vLLM's order).

    Args:
        dense: the dense layers, in order.
        normalizes: whether embeddings are scaled to length 1, by default.
    """

    def __init__(self, dense: Sequence[Layer], *, normalizes: bool) -> None:
        self._dense, self._normalizes = dense, normalizes

    def __call__(self, row: torch.Tensor, spec: PoolingSpec) -> torch.Tensor:
        """Return embeddings [..., dimensions] for rows [..., hidden]."""
        for layer in self._dense:
            row = layer(row)
        row = row[..., : spec.dimensions]
        wants = self._normalizes if spec.use_activation is None else spec.use_activation
        return F.normalize(row, dim=-1) if wants else row


class ClassifierHead:
    """A head that computes logits, and probabilities or scores from them.

    Args:
        layers: the layers from rows to logits, in order.
        activation: turns logits into probabilities.
        mean, sigma: before the activation, a logit becomes (logit - mean) / sigma.
        applies: whether the activation is applied, by default.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        activation: Activation,
        *,
        mean: float = 0.0,
        sigma: float = 1.0,
        applies: bool = True,
    ) -> None:
        self._layers, self._activation, self._applies = layers, ACTIVATIONS[activation], applies
        self._mean, self._sigma = mean, sigma

    def __call__(self, row: torch.Tensor, spec: PoolingSpec) -> torch.Tensor:
        """Return probabilities [..., labels] for rows [..., hidden], or logits if the request disables the activation."""
        for layer in self._layers:
            row = layer(row)
        if spec.returned_token_ids:
            # Column by column, because a list of indices would first have to be copied to the device.
            row = torch.stack([row[..., index] for index in spec.returned_token_ids], -1)
        if self._mean or self._sigma != 1:
            row = (row - self._mean) / self._sigma
        wants = self._applies if spec.use_activation is None else spec.use_activation
        return self._activation(row) if wants else row
