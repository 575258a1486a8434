"""Sampling fields: decodes the sampling fields of a public gRPC request to arguments of SamplingParams. Absent
fields stay absent.
"""

from typing import Any

from tetrad.frontend.request.prompt_scores import NO_ID
from tetrad.frontend.request.sampling_params import RepetitionDetection
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest, UnsupportedArgument
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.struct_values import decode_struct
from tetrad.services.rpc.unread_fields import UnreadFields
from tetrad.v1 import inference_pb2, types_pb2

_SCALARS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "skip_reading_prefix_cache",
    "thinking_token_budget",
)
_LISTS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")
_TEXT_SCALARS = ("skip_special_tokens", "spaces_between_special_tokens", "detokenize", "stream_interval")
_SIDES = ("left", "right")
_OWNER = "This server"
_NO_ID = 0xFFFFFFFF
UNREAD_OF_PARAMS = UnreadFields(
    types_pb2.SamplingParams,
    ("thinking_start_token_ids", "thinking_end_token_ids"),
    owner=_OWNER,
    error=UnsupportedArgument,
)

PublicRequest = inference_pb2.GenerateRequest | inference_pb2.ChatRequest


def sampling_fields_of(request: PublicRequest) -> dict[str, Any]:
    """Return the arguments of SamplingParams that a request sets.

    Raises:
        InvalidRequest: a field that public requests do not have, a value that is given twice, or an invalid constraint.
    """
    fields = params_fields_of(request.sampling_params) | _text_of(request.text_options)
    if request.HasField("n"):
        fields["n"] = request.n
    if request.text_options.HasField("allowed_token_ids"):
        if request.sampling_params.allowed_token_ids:
            text = "allowed_token_ids stands in both sampling_params and text_options; give it once."
            raise InvalidRequest(text, field="allowed_token_ids")
        fields["allowed_token_ids"] = list(request.text_options.allowed_token_ids.ids)
    return fields


def truncation_of(request: PublicRequest) -> dict[str, Any]:
    """Return the truncation of a request's prompt, as arguments of AsyncLLM.add_request."""
    side = request.truncation_side or _SIDES[0]
    if side not in _SIDES:
        text = f"truncation_side: Input should be 'left' or 'right', got {side!r}"
        raise InvalidRequest(text, field="truncation_side")
    tokens = request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None
    return {"truncate_prompt_tokens": tokens, "truncation_side": side}


def as_written(value: float) -> float:
    """Return the decimal number of a float32: the client's 0.7 arrives as 0.699999988."""
    return float(f"{value:.7g}")


def params_fields_of(message: types_pb2.SamplingParams) -> dict[str, Any]:
    """Return the arguments of SamplingParams that a message sets; errors as in `sampling_fields_of`."""
    if message.bad_words_token_ids:
        text = "sampling_params.bad_words_token_ids is not taken here: give the words as text_options.bad_words."
        raise InvalidRequest(text, field="bad_words_token_ids")
    UNREAD_OF_PARAMS.refuse(message)
    fields: dict[str, Any] = {name: getattr(message, name) for name in _SCALARS if message.HasField(name)}
    fields |= {name: as_written(value) for name, value in fields.items() if isinstance(value, float)}
    fields |= {name: list(getattr(message, name)) for name in _LISTS if getattr(message, name)}
    fields["ignore_eos"] = message.ignore_eos
    if message.logit_bias:
        fields["logit_bias"] = dict(message.logit_bias)
    if message.HasField("repetition_detection"):
        found = message.repetition_detection
        fields["repetition_detection"] = RepetitionDetection(found.max_pattern_size, found.min_pattern_size, found.min_count)
    if message.HasField("structured_outputs"):
        fields["structured_outputs"] = _structured_of(message.structured_outputs)
    if message.HasField("prompt_score_ids"):
        fields["prompt_logprob_token_ids"], fields["prompt_logprob_start"] = _scored_of(message.prompt_score_ids)
    if message.HasField("extra_args"):
        fields["extra_args"] = decode_struct(message.extra_args)
    return fields


def _scored_of(message: types_pb2.PromptScoreIds) -> tuple[list[list[int]] | list[int], int]:
    """Return the ids of all rows, or of each row, and their start."""
    if message.HasField("num_positions"):
        text = "sampling_params.prompt_score_ids.num_positions is not taken here: Transcribe returns times."
        raise InvalidRequest(text, field="prompt_score_ids")
    ids, width = [NO_ID if each == _NO_ID else each for each in unpack_u32(message.token_ids)], message.width
    if not width or not ids or len(ids) % width:
        text = f"sampling_params.prompt_score_ids has {len(ids)} ids, which are no rows of {width}."
        raise InvalidRequest(text, field="prompt_score_ids")
    rows = [ids[at : at + width] for at in range(0, len(ids), width)]
    return (rows if len(rows) > 1 else ids), message.start


def _text_of(options: inference_pb2.TextOptions) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(options, name) for name in _TEXT_SCALARS if options.HasField(name)}
    fields["stop"], fields["bad_words"] = list(options.stop), list(options.bad_words)
    fields["include_stop_str_in_output"] = options.include_stop_str_in_output
    return fields


def _structured_of(message: types_pb2.StructuredOutputs) -> StructuredOutputsParams:
    kind = message.WhichOneof("constraint")
    values: dict[str, Any] = {}
    if kind == "choice":
        values["choice"] = list(message.choice.choices)
    elif kind is not None:
        values["json" if kind == "json_schema" else kind] = getattr(message, kind)
    return StructuredOutputsParams(
        **values,
        disable_any_whitespace=message.disable_any_whitespace,
        disable_additional_properties=message.disable_additional_properties,
        whitespace_pattern=message.whitespace_pattern if message.HasField("whitespace_pattern") else None,
        start_after_token_ids=list(message.start_after_token_ids) or None,
        opening_token_ids=list(message.opening_token_ids) or None,
    )
