"""LongRoPE in transformers' code: computes rotary embeddings as for the model's longest context, whatever a pass contains.

LongRoPE has one list of factors for short contexts and one for long ones. transformers chooses by the largest position of a
pass, so that a token would depend on the requests beside it. Here each pass has the largest position of the model in addition,
whose rotation is dropped: the choice depends on the config alone, as in families (layers/rotary_scalings.py).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from tetrad.worker_svc.models.transformers_backend.interface import UnservableError

_TYPES = ("longrope", "su")
_POSITIONS = "position_ids"


def fix_longrope(module: torch.nn.Module, settings: Any, longest: int) -> None:
    """Make the rotary embeddings of a model independent of the contexts of a pass.

    Args:
        module: the model.
        settings: its config of transformers.
        longest: its longest context.

    Raises:
        UnservableError: the config has LongRoPE, and none of the model's modules computes it as transformers' do.
    """
    if not _types_of(getattr(settings, "rope_parameters", None) or getattr(settings, "rope_scaling", None)):
        return
    found = [each for each in module.modules() if _types_of(getattr(each, "rope_type", None))]
    if not found:
        raise UnservableError("its rotary embedding of type longrope depends on the longest context of a batch")
    for each in found:
        each.register_forward_pre_hook(partial(_with_longest, longest - 1), with_kwargs=True)
        each.register_forward_hook(_without_longest)


def _types_of(value: Any) -> list[str]:
    """Return the types of LongRoPE in a type, in the parameters of an embedding, or in those of each kind of layers."""
    if isinstance(value, Mapping):
        own = [value.get("rope_type", value.get("type")), *value.values()]
        return [kind for each in own if each is not value for kind in _types_of(each)]
    return [value] if isinstance(value, str) and value in _TYPES else []


def _with_longest(
    position: int, _module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positions = kwargs[_POSITIONS] if _POSITIONS in kwargs else args[1]
    longer = torch.cat([positions, positions.new_full((*positions.shape[:-1], 1), position)], -1)
    return (args, kwargs | {_POSITIONS: longer}) if _POSITIONS in kwargs else ((args[0], longer, *args[2:]), kwargs)


def _without_longest(_module: torch.nn.Module, _args: tuple[Any, ...], turns: Any) -> Any:
    cos, sin = turns
    return cos[..., :-1, :], sin[..., :-1, :]
