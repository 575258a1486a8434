"""Probe: runs one forward pass over a few tokens to find the attention of each layer of a model of transformers.

A model whose attention AttentionShape cannot describe is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tetrad.worker_svc.attention.interface import AttentionShape, HeadSizes
from tetrad.worker_svc.attention.paged_metadata import Sight
from tetrad.worker_svc.models.transformers_backend.interface import MaskFunction, UnservableError
from tetrad.worker_svc.models.transformers_backend.sight import sees, sight_of

_WITHOUT_EFFECT = frozenset({"position_ids", "cache_position", "sliding_window", "scaling", "softcap", "s_aux", "is_causal"})
"""Options of attention that are read here or have no effect; any other tensor would change the attention."""


@dataclass(frozen=True, eq=False, slots=True)
class LayerCall:
    """The attention of one layer: the n-th call of a forward pass.

    Attributes:
        module: the calling module.
        shape: the attention, with the layer's own heads; a head has the larger of key_dim and value_dim.
        window: number of keys that a query attends to, itself included; None: all.
        key_dim, value_dim: dimensions of a head's keys and values.
    """

    module: torch.nn.Module
    shape: AttentionShape
    window: int | None
    key_dim: int
    value_dim: int


def cache_heads(layers: Sequence[LayerCall]) -> HeadSizes:
    """Return the heads of the KV cache: those of the layers if all layers have the same, otherwise wide enough for each."""
    heads = [layer.shape.heads for layer in layers if layer.shape.heads is not None]
    if len(set(heads)) == 1:
        return heads[0]
    num_kv_heads = heads[0].num_kv_heads if len({each[1:] for each in heads}) == 1 else 1
    width = max(each.num_kv_heads * each.head_dim for each in heads)
    return HeadSizes(num_kv_heads, num_kv_heads, width // num_kv_heads)


class Probe:
    """Calls that record each layer; see Calls. torch computes attention over the tokens of the pass."""

    def __init__(self) -> None:
        self.layers: list[LayerCall] = []
        self._masks: list[tuple[torch.Tensor, Sight]] = []

    def make_mask(self, num_queries: int, num_keys: int, function: MaskFunction, local_size: int | None) -> torch.Tensor:
        """Return a mask that `attend` can recognise."""
        sight = sight_of(function, local_size)
        mask = torch.tensor([[sees(sight, query, key) for key in range(num_keys)] for query in range(num_queries)])[None, None]
        self._masks.append((mask, sight))
        return mask

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        **options: Any,
    ) -> torch.Tensor:
        """Record the layer; see Calls."""
        if key.shape[2] != query.shape[2]:
            raise UnservableError(f"a layer has keys of {key.shape[2]} tokens for queries of {query.shape[2]}")
        _check_options(module, options)
        sight = self._sight(mask, query.shape[2], options)
        sinks, scale = options.get("s_aux"), options.get("scaling")
        shape = AttentionShape(
            scale=float(query.shape[3] ** -0.5 if scale is None else scale),
            window=sight.window,
            softcap=float(options.get("softcap") or 0.0),
            sinks=None if sinks is None else sinks.detach().float().flatten(),
            chunk=sight.chunk,
            heads=HeadSizes(query.shape[1], key.shape[1], max(query.shape[3], value.shape[3])),
        )
        self.layers.append(LayerCall(module, shape, sight.window, query.shape[3], value.shape[3]))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])

    def _sight(self, mask: torch.Tensor | None, num_tokens: int, options: Mapping[str, Any]) -> Sight:
        for known, sight in self._masks:
            if mask is known:
                return sight
        if mask is not None and not _is_causal(mask, num_tokens):
            raise UnservableError("it changes the mask of its attention, as alibi does")
        # The model makes its own masks, so the window is taken from its options.
        window = options.get("sliding_window")
        return Sight(int(window) if window else None)


def _check_options(module: torch.nn.Module, options: Mapping[str, Any]) -> None:
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise UnservableError("its attention is not causal")
    unknown = [name for name, value in options.items() if isinstance(value, torch.Tensor) and name not in _WITHOUT_EFFECT]
    if unknown:
        raise UnservableError(f"its attention needs {', '.join(sorted(unknown))}")


def _is_causal(mask: torch.Tensor, num_tokens: int) -> bool:
    if mask.shape[-2:] != (num_tokens, num_tokens):
        return False
    allowed = mask if mask.dtype == torch.bool else mask == 0
    return bool((allowed.flatten(0, -3) == torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()).all())
