"""Sampling defaults: the sampling parameters of requests that do not set them.

Made once per frontend from the model's generation_config.json and the option --override-generation-config, which has priority.
The names are those of generation_config.json and SamplingParams.
"""

import json
from collections.abc import Mapping
from typing import Any

from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest

DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The sampling parameters that a generation_config.json may recommend."""


def sampling_defaults(recommended: Mapping[str, Any], override: str = "") -> dict[str, Any]:
    """Return the default values, by the name of the parameter.

    Args:
        recommended: the content of a model's generation_config.json; keys besides DEFAULTS are ignored.
        override: JSON object whose values replace the recommended ones; empty: none.

    Raises:
        InvalidRequest: see read_override.
    """
    values = {**recommended, **read_override(override)}
    return {name: values[name] for name in DEFAULTS if values.get(name) is not None}


def read_override(text: str) -> dict[str, Any]:
    """Return the values of --override-generation-config; InvalidRequest for an unknown name or a value out of range."""
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{text[:80]!r} is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise InvalidRequest(f"{text!r} is not a JSON object.")
    if unknown := sorted(set(values) - set(DEFAULTS)):
        raise InvalidRequest(f"{', '.join(unknown)} cannot be overridden; {', '.join(DEFAULTS)} can.")
    try:
        SamplingParams(**{name: value for name, value in values.items() if value is not None})
    except TypeError as error:
        raise InvalidRequest(f"{text!r}: {error}.") from error
    return values
