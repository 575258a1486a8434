"""Heads: compute an answer from a pooled row: an embedding or the probabilities of classes. In float32, on any device."""

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
    """A layer of the sentence-transformers library.

    Args:
        linear: its product.
        activation: behind it.
    """

    def __init__(self, linear: Linear, activation: Layer) -> None:
        self._linear, self._activation = linear, activation

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        """Return [..., outputs] for rows [..., inputs]."""
        return self._activation(self._linear(row))


class EmbeddingHead:
    """Dense layers, then a shorter length, then a length of 1 (vLLM's order).

    Args:
        dense: layers, applied in order.
        normalizes: whether embeddings are scaled unless a request says otherwise.
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
    """Logits, then probabilities or scores.

    Args:
        layers: from rows to logits, in order.
        activation: makes probabilities of logits.
        mean, sigma: logits are made smaller by the mean, and divided by sigma, before that.
        applies: whether the activation is applied unless a request says otherwise.
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
        """Return probabilities [..., labels] for rows [..., hidden]; the logits if the request wants no activation."""
        for layer in self._layers:
            row = layer(row)
        if spec.returned_token_ids:
            # One by one: a list of indices would have to be copied to the device first.
            row = torch.stack([row[..., index] for index in spec.returned_token_ids], -1)
        if self._mean or self._sigma != 1:
            row = (row - self._mean) / self._sigma
        wants = self._applies if spec.use_activation is None else spec.use_activation
        return self._activation(row) if wants else row
