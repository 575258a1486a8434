"""Sampling JSON: converts SamplingParams to and from the object `sampling_params` of vLLM's scale-out API."""

import dataclasses
import inspect
from typing import Any

from tetrad.frontend.api.http.scale_out.bodies import SamplingParamsBody
from tetrad.frontend.request.sampling_params import RepetitionDetection, RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest

_OF_SERVER = ("output_kind", "truncate_prompt_tokens")
"""Fields of SamplingParams that follow from other fields of the body."""
_NAMES = frozenset(inspect.signature(SamplingParams).parameters) - {"guided_decoding", "truncate_prompt_tokens"}
_CONSTRAINT_NAMES = frozenset(each.name for each in dataclasses.fields(StructuredOutputsParams)) - {
    "start_after_token_ids",
    "opening_token_ids",
    "request_field",
}
_DETECTION_NAMES = frozenset(each.name for each in dataclasses.fields(RepetitionDetection))


def json_of(params: SamplingParams) -> dict[str, Any]:
    """Return the fields that differ from their defaults, and `max_tokens`, whose default depends on the API."""
    shown = {
        each.name: getattr(params, each.name)
        for each in dataclasses.fields(params)
        if each.init and each.name not in _OF_SERVER and getattr(params, each.name) not in (each.default, [])
    }
    if params.structured_outputs is not None:
        shown["structured_outputs"] = _changed_fields(params.structured_outputs, _CONSTRAINT_NAMES)
    if params.repetition_detection is not None:
        shown["repetition_detection"] = _changed_fields(params.repetition_detection, _DETECTION_NAMES)
    return shown | {"max_tokens": params.max_tokens}


def params_of(given: SamplingParamsBody, *, stream: bool, as_text: bool) -> SamplingParams:
    """Return the parameters of an object `sampling_params`.

    Args:
        given: fields with SamplingParams' names; without max_tokens, the rest of the context may be generated.
        stream: whether the answer is streamed.
        as_text: whether outputs are returned as text.

    Raises:
        InvalidRequest: an unknown name, a value out of range, or one that this server does not support.
    """
    fields: dict[str, Any] = {"max_tokens": None} | (given.model_extra or {})
    fields.pop("output_kind", None)
    unknown = next((name for name in fields if name not in _NAMES), None)
    if unknown is not None:
        # If an unknown field were ignored, the answer would silently differ.
        raise InvalidRequest(f"sampling_params has an unknown field {unknown[:64]!r}.", field="sampling_params")
    if given.structured_outputs is not None:
        fields["structured_outputs"] = given.structured_outputs.to_params()
    if given.repetition_detection is not None:
        fields["repetition_detection"] = RepetitionDetection(**given.repetition_detection.model_dump())
    for name in ("prompt_logprobs", "prompt_logprob_token_ids"):
        if stream and fields.get(name) is not None:
            raise InvalidRequest(f"`{name}` are not available when `stream=True`.", field=name)
    kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    params = SamplingParams(**fields, output_kind=kind)
    params.flat_logprobs = False  # answers in JSON have one form of log-probabilities
    if as_text and not params.detokenize:
        raise InvalidRequest("output_mode 'text' requires sampling_params.detokenize to be true.", field="output_mode")
    if not as_text and not params.stops:
        # The text is not needed.
        params.detokenize = False
    return params


def _changed_fields(value: StructuredOutputsParams | RepetitionDetection, names: frozenset[str]) -> dict[str, Any]:
    return {
        each.name: getattr(value, each.name)
        for each in dataclasses.fields(value)
        if each.name in names and getattr(value, each.name) != each.default
    }
