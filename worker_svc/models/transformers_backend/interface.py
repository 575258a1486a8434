"""Attention interface of transformers: an attention function and a mask function, registered under our own name.

transformers calls both while a model runs. They pass each call to the active object: the probe (probe.py) while a model is
loaded, the step (model.py) afterwards. Used only by the compute thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

IMPLEMENTATION = "tetrad_paged"
"""The value of attn_implementation."""

MaskFunction = Callable[[Any, Any, Any, Any], Any]
"""Function (batch, head, query position, key position) -> whether the query attends to the key."""


class UnservableError(Exception):
    """Paged attention cannot run the model. The message is the reason, as the end of a sentence with the model's name."""


class Calls(Protocol):
    """Handles the calls of one forward pass. Methods may raise UnservableError."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        **options: Any,
    ) -> torch.Tensor:
        """Return the attention [1, T, H, V] for queries [1, H, T, D], keys [1, K, T, D] and values [1, K, T, V].

        Args:
            module: the calling attention layer.
            query, key, value: queries, keys and values of this pass's tokens.
            mask: the result of `make_mask`, unless the model changed it.
            options: scaling, sliding_window, softcap, s_aux and others, under the model's names.
        """

    def make_mask(self, num_queries: int, num_keys: int, function: MaskFunction, local_size: int | None) -> torch.Tensor | None:
        """Return the mask of a kind of layers; `local_size` is their window or chunk size."""


_active: ContextVar[Calls] = ContextVar("calls")


def register() -> None:
    """Register both functions with transformers; further calls have no effect."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, _attend)
    AttentionMaskInterface.register(IMPLEMENTATION, _make_mask)


@contextmanager
def answered_by(calls: Calls) -> Iterator[None]:
    """Pass the calls of models that run in this context to `calls`."""
    token = _active.set(calls)
    try:
        yield
    finally:
        _active.reset(token)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    return _active.get().attend(module, query, key, value, attention_mask, **options), None


def _make_mask(
    *, q_length: int, kv_length: int, mask_function: MaskFunction, local_size: int | None = None, **_: Any
) -> torch.Tensor | None:
    return _active.get().make_mask(q_length, kv_length, mask_function, local_size)
