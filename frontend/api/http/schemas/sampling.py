"""Sampling: makes SamplingParams from the fields of a body. Unset fields have the model's defaults, else OpenAI's."""

from typing import Any

from tetrad.frontend.api.http.schemas.generation_fields import SamplingBody
from tetrad.frontend.request.sampling_params import RepetitionDetection, RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest

_FORMAT = "response_format"
_FURTHER = ("n", "stop", "prompt_logprobs", "logprob_token_ids", "stream_interval", "thinking_token_budget")


def sampling_params_of(
    body: SamplingBody,
    defaults: dict[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    with_format: bool = True,
) -> SamplingParams:
    """Return the sampling parameters of a body.

    Args:
        body: the body of the request.
        defaults: the model's defaults, by SamplingParams' names.
        max_tokens: the value from the API's fields; None: as many as fit the context.
        logprobs: the value from the API's fields.
        with_format: whether response_format constrains the output. False if the output consists of calls, not text.

    Raises:
        InvalidRequest: a value out of range.
    """
    further = {name: value for name in _FURTHER if (value := getattr(body, name)) is not None}
    fields = defaults | body.given_sampling_fields() | further
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        **fields,
        max_tokens=max_tokens,
        logprobs=logprobs,
        structured_outputs=_structured_outputs(body, with_format=with_format),
        repetition_detection=_repetition_detection(body),
        output_kind=kind,
    )


def _repetition_detection(body: SamplingBody) -> RepetitionDetection | None:
    wanted = body.repetition_detection
    return None if wanted is None else RepetitionDetection(**wanted.model_dump())


def _structured_outputs(body: SamplingBody, *, with_format: bool) -> StructuredOutputsParams | None:
    wanted, form = body.structured_outputs, body.response_format
    if form is not None and form.type != "text":
        if wanted is not None:
            text = "Only one of response_format and structured_outputs can be given."
            raise InvalidRequest(text, field=_FORMAT)
        if not with_format:
            return None
        if form.type == "json_object":
            of_object = form.value if form.schema_ is None else form.schema_
            if of_object is not None:
                return StructuredOutputsParams(json=of_object, request_field=_FORMAT)
            return StructuredOutputsParams(json_object=True, request_field=_FORMAT)
        if form.type == "structural_tag":
            return StructuredOutputsParams(structural_tag=form.model_dump_json(exclude_none=True), request_field=_FORMAT)
        schema = form.json_schema
        assert schema is not None
        # OpenAI accepts strict schemas only if every object is closed.
        closed = schema.strict is True
        return StructuredOutputsParams(json=schema.schema_, disable_additional_properties=closed, request_field=_FORMAT)
    return None if wanted is None else wanted.to_params()
