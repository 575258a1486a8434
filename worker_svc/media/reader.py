"""Reader interface: how a tower calls transformers' module for an item of one kind of model. Values without rules."""

from collections.abc import Callable
from typing import Protocol

import torch

from tetrad.worker_svc.core.media import Modality
from tetrad.worker_svc.core.plan import EncoderItem

Inputs = dict[str, torch.Tensor]
"""Arguments of a method of the module."""
Encoded = tuple[torch.Tensor, torch.Tensor | None]
"""Rows [N, hidden], and deep values [L, N, hidden] of a model with DeepStack."""
Call = Callable[[str, Inputs], Encoded]
"""Calls a method of the module, by name, on its device; of its output, `pooler_output` has the rows."""


class ItemReader(Protocol):
    """Reads the items of a model.

    Attributes:
        modalities: the kinds of media.
        uses_mrope, num_deep_layers: see Tower.
    """

    modalities: tuple[Modality, ...]
    uses_mrope: bool
    num_deep_layers: int

    def encode(self, item: EncoderItem, call: Call) -> Encoded:
        """Return the output for an item. Raises InvalidRequest if its tensors do not fit the model."""

    def activation_values(self, num_embeds: int) -> int:
        """Return the number of values that encoding an item of this many embeddings allocates besides its result."""
