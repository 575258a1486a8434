"""Paged module: a causal model of transformers whose layers attend over KV pages.

The tokens of a step are one row [1, T] with their positions: all parts except attention compute tokens separately. Attention
finds the requests in the step's metadata.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic

import torch

from tetrad.worker_svc.attention.interface import ByGroup, LayerAttention, M
from tetrad.worker_svc.kv_cache.layer_groups import LayerGroup, group_of_layers
from tetrad.worker_svc.models.transformers_backend.interface import MaskFunction, answered_by
from tetrad.worker_svc.models.transformers_backend.probe import LayerCall


class PagedModule(Generic[M]):
    """The module of a causal model with paged attention; `M` is the type of the device's metadata.

    Args:
        module: the module.
        layers: the attention of each layer as the module calls it, and over pages.
        groups: the KV groups of the layers.
    """

    def __init__(
        self, module: Any, layers: Sequence[tuple[LayerCall, LayerAttention[M]]], groups: Sequence[LayerGroup]
    ) -> None:
        self._module, self._base, self._layers = module, base_of(module), layers
        self._group_of_layers = group_of_layers(groups)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, caches: list[torch.Tensor], metadata: ByGroup[M]
    ) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden], normed; write keys and values to the caches of the layers."""
        step = _Step(self._layers, caches, [metadata[group] for group in self._group_of_layers])
        with answered_by(step):
            outputs = self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, return_dict=True)
        hidden: torch.Tensor = outputs.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32, computed by the model's code from its last hidden states."""
        token_ids = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
        with _returning(self._base, hidden[None]):
            outputs = self._module(input_ids=token_ids, use_cache=False, return_dict=True)
        logits: torch.Tensor = outputs.logits[0].float()
        return logits


def base_of(module: Any) -> Any:
    """Return the part of a causal model that makes hidden states; the model itself if its code has no such part."""
    found = module.get_decoder()
    # transformers takes an output layer with the name "decoder" for the part, as in ModernBERT's decoder.
    return module.base_model if isinstance(found, torch.nn.Linear) else found


class _Step(Generic[M]):
    """The Calls of one step; see Calls."""

    def __init__(
        self,
        layers: Sequence[tuple[LayerCall, LayerAttention[M]]],
        caches: Sequence[torch.Tensor],
        metadata: Sequence[M],
    ) -> None:
        self._layers = iter(zip(layers, caches, metadata, strict=True))

    def make_mask(self, num_queries: int, num_keys: int, function: MaskFunction, local_size: int | None) -> None:
        """Return None: the step's metadata contains the masks."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,  # noqa: ARG002 - as Calls
        **options: Any,  # noqa: ARG002 - as Calls
    ) -> torch.Tensor:
        """Write keys and values into the layer's pages, and compute attention over the pages; see Calls."""
        (layer, attention), cache, metadata = next(self._layers)
        assert module is layer.module, "a pass calls the layers that the probe has found"
        heads = layer.shape.heads
        assert heads is not None
        keys_and_values = torch.cat([_rows(key, heads.head_dim), _rows(value, heads.head_dim)], 1)
        attended = attention.attend(_rows(query, heads.head_dim), keys_and_values, cache, metadata)
        return attended.view(1, -1, heads.num_heads, heads.head_dim)[..., : layer.value_dim].clone()


def _rows(states: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return rows [T, H * head_dim] of states [1, H, T, D]; each head is padded with zeros."""
    rows = states[0].transpose(0, 1)
    return torch.nn.functional.pad(rows, (0, head_dim - rows.shape[-1])).reshape(len(rows), -1)


class _Returned:
    """The output of a base model, with only the hidden states."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _returning(base: torch.nn.Module, hidden: torch.Tensor) -> Iterator[None]:
    """Make a base model return these hidden states for any input, inside the context."""
    base.forward = lambda *_, **__: _Returned(hidden)
    try:
        yield
    finally:
        del base.forward
