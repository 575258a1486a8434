"""Config numbers: refuses numbers of a config.json with which a model computes nothing sensible, by the names of their keys.

Called for each value that a family reads. Sizes, whose limits depend on each other, are checked in limits.py.
"""

import math
from collections.abc import Mapping

from tetrad.services.errors import ModelError

_NOT_NEGATIVE = frozenset(
    ("clip_qkv", "attn_logit_softcapping", "final_logit_softcapping", "swiglu_limit", "time_step_min", "mamba_dt_min")
)
_ABOVE_0 = frozenset(("rope_theta", "rotary_emb_base", "rope_local_base_freq", "query_pre_attn_scalar", "factor"))
_EPSILONS = ("_eps", "epsilon")
"""The ends of the names of epsilons, which are not negative."""


def check_numbers(key: str, value: object) -> None:
    """Raise ModelError for a number that is not finite or has a sign that its key cannot have.

    Args:
        key: the key.
        value: its value: a number, or a JSON object with numbers. Lists may have infinite bounds, and no NaN.
    """
    if isinstance(value, Mapping):
        for inner, each in value.items():
            if not isinstance(each, Mapping):
                check_numbers(str(inner), each)
    elif isinstance(value, list):
        if any(isinstance(each, float) and math.isnan(each) for each in value):
            raise _impossible(key, math.nan, "numbers")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(key, value)


def _check_number(key: str, value: float) -> None:
    if not -math.inf < value < math.inf:
        raise _impossible(key, value, "a finite number")
    if key in _ABOVE_0 and value <= 0:
        raise _impossible(key, value, "above 0")
    if value < 0 and (key in _NOT_NEGATIVE or key.endswith(_EPSILONS)):
        raise _impossible(key, value, "0 or above")


def _impossible(key: str, value: float, what: str) -> ModelError:
    return ModelError(f"The model's config is impossible: {key} is {str(value)[:40]}, it must be {what}.")
