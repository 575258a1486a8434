"""Sampling of Ollama's API: converts options and format to SamplingParams, which checks ranges."""

from typing import Any

from tetrad.frontend.api.http.ollama.bodies import GeneratingBody, OptionsBody
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest

_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Option -> field of SamplingParams."""


def sampling_params_of(llm: AsyncLLM, body: GeneratingBody) -> SamplingParams:
    """Return the sampling parameters of a body; InvalidRequest for a value out of range or a too large context."""
    options = body.options or OptionsBody()
    check_context(llm, options)
    given = {ours: value for theirs, ours in _NAMES.items() if (value := getattr(options, theirs)) is not None}
    return SamplingParams(
        **llm.default_sampling_fields() | given,
        max_tokens=None if options.num_predict in (None, -1, -2) else options.num_predict,
        stop=options.stop,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        structured_outputs=_constraint(body.format),
        output_kind=RequestOutputKind.DELTA if body.streams else RequestOutputKind.FINAL_ONLY,
    )


def check_context(llm: AsyncLLM, options: OptionsBody | None) -> None:
    """Refuse options that require a longer context than the server has."""
    if options is not None and options.num_ctx is not None and options.num_ctx > llm.max_model_len:
        text = f"options.num_ctx={options.num_ctx} is longer than this server's context of {llm.max_model_len} tokens."
        raise InvalidRequest(text, field="options.num_ctx")


def _constraint(form: str | dict[str, Any] | None) -> StructuredOutputsParams | None:
    if form is None or form == "":
        return None
    if form == "json":
        return StructuredOutputsParams(json_object=True, request_field="format")
    return StructuredOutputsParams(json=form, request_field="format")
