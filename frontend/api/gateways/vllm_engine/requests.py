"""Requests: decodes a GenerateRequest of VllmEngine for AsyncLLM. A zero means "not set": the model's default, or off."""

from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2

from tetrad.frontend.api.gateways.common.calls import GatewayRequest
from tetrad.frontend.api.gateways.common.refusals import refuse
from tetrad.frontend.api.grpc.chat_bodies import json_of
from tetrad.frontend.api.grpc.sampling_fields import as_written
from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest

_FLOATS = ("top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_COUNTS = ("top_k", "min_tokens", "n")
_OPTIONAL = ("max_tokens", "logprobs", "prompt_logprobs", "seed", "truncate_prompt_tokens")


def request_of(message: vllm_engine_pb2.GenerateRequest, defaults: dict[str, Any]) -> GatewayRequest:
    """Return the request in a message.

    Args:
        message: the gateway's message.
        defaults: arguments of SamplingParams for fields that the message does not set.

    Raises:
        InvalidRequest: the request is invalid, or needs an unsupported feature.
    """
    given = {field.name for field, _ in message.ListFields()}
    refuse(given, ("mm_inputs", "extra_mm_inputs", "media_refs"), "send images over HTTP, or to tetrad.v1")
    refuse(given, ("kv_transfer_params",), "the connector that it is for does not exist; use kv_transfer_params_json")
    transfer = KvTransfer.of(json_of("kv_transfer_params_json", message.kv_transfer_params_json))
    rank = message.data_parallel_rank if message.HasField("data_parallel_rank") else None
    kind = RequestOutputKind.DELTA if message.stream else RequestOutputKind.FINAL_ONLY
    fields = {"max_tokens": None, **defaults, **_sampling_fields(message.sampling_params)}
    params = SamplingParams(**fields, output_kind=kind)
    options = {"data_parallel_rank": rank, "kv_transfer": transfer}
    return GatewayRequest(message.request_id, _prompt_of(message), params, options)


def _prompt_of(message: vllm_engine_pb2.GenerateRequest) -> PromptType:
    match message.WhichOneof("input"):
        case "tokenized":
            return TokensPrompt(prompt_token_ids=list(message.tokenized.input_ids))
        case "text":
            return str(message.text)
        case _:
            raise InvalidRequest("A request needs `tokenized` or `text`.", field="input")


def _sampling_fields(message: vllm_engine_pb2.SamplingParams) -> dict[str, Any]:
    fields: dict[str, Any] = {name: as_written(value) for name in _FLOATS if (value := getattr(message, name))}
    fields |= {name: value for name in _COUNTS if (value := getattr(message, name))}
    fields |= {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    if message.HasField("temperature"):
        fields["temperature"] = as_written(message.temperature)
    fields["stop"] = list(message.stop)
    fields["stop_token_ids"] = list(message.stop_token_ids)
    fields["ignore_eos"] = message.ignore_eos
    if message.logit_bias:
        fields["logit_bias"] = dict(message.logit_bias)
    fields["structured_outputs"] = _constraint_of(message)
    # The gateway detokenizes. Only stop strings need text here: they end the output before its maximum length.
    return fields | _text_fields(message) if message.stop else fields | {"detokenize": False}


def _text_fields(message: vllm_engine_pb2.SamplingParams) -> dict[str, bool]:
    names = ("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output")
    return {name: getattr(message, name) for name in names}


def _constraint_of(message: vllm_engine_pb2.SamplingParams) -> StructuredOutputsParams | None:
    match message.WhichOneof("constraint"):
        case None:
            return None
        case "choice":
            return StructuredOutputsParams(choice=list(message.choice.choices))
        case "json_schema":
            return StructuredOutputsParams(json=message.json_schema)
        case "json_object":
            return StructuredOutputsParams(json_object=True) if message.json_object else None
        case kind:
            return StructuredOutputsParams(**{kind: getattr(message, kind)})
