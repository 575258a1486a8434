"""Requests: decodes a GenerateRequest of openengine.v1.Inference for AsyncLLM. Absent fields have the model's defaults."""

from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tetrad.frontend.api.gateways.common.calls import GatewayRequest
from tetrad.frontend.api.gateways.common.refusals import refuse
from tetrad.frontend.llm.adapter_names import AdapterNames
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.openengine_api import inference_pb2
from tetrad.services.errors import InvalidRequest, NotFound

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_STOPPING = ("max_tokens", "min_tokens", "ignore_eos")
_GRAMMAR_BACKENDS = ("", "llguidance")
_REVISION = 3
"""Of OpenEngine's schema."""
# Name in OpenEngine's API -> name in StructuredOutputsParams.
_GUIDES = {"json_schema": "json", "regex": "regex", "ebnf_grammar": "grammar", "structural_tag": "structural_tag"}


def request_of(
    message: inference_pb2.GenerateRequest,
    options: dict[str, Any],
    defaults: dict[str, Any],
    adapters: AdapterNames,
    request_id: str,
) -> GatewayRequest:
    """Return the request in a message.

    Args:
        message: the client's message.
        options: the arguments from the metadata of the call.
        defaults: arguments of SamplingParams for fields that the message does not set.
        adapters: the adapters that requests may name.
        request_id: the id from the message, or a new one.

    Raises:
        InvalidRequest: the request is invalid, or has an unsupported field.
        NotFound: the named adapter does not exist.
    """
    given = {field.name for field, _ in message.ListFields()}
    refuse(given, ("media", "media_options"), "send images over HTTP, or to tetrad.v1")
    refuse(given, ("extra",), "every parameter that is served has a field of its own")
    refuse({field.name for field, _ in message.kv.ListFields()}, ("session",), "the frontend has no KV sessions")
    _refuse_unknown_fields(message)
    lora = adapters.get(message.lora_name) if message.lora_name else None
    if message.lora_name and lora is None:
        raise NotFound(f"The adapter `{message.lora_name}` does not exist.", field="lora_name")
    fields = {"max_tokens": None, **defaults, **_sampling_fields(message)}
    params = SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)
    options = {**options, "cache_salt": message.kv.cache_salt, "lora_request": lora}
    return GatewayRequest(request_id, _prompt_of(message), params, options)


def _prompt_of(message: inference_pb2.GenerateRequest) -> PromptType:
    match message.WhichOneof("input"):
        case "token_ids":
            return TokensPrompt(prompt_token_ids=list(message.token_ids.ids))
        case "prompt":
            return message.prompt
        case _:
            raise InvalidRequest("A request needs `prompt` or `token_ids`.", field="input")


def _sampling_fields(message: inference_pb2.GenerateRequest) -> dict[str, Any]:
    sampling, kv = message.sampling, message.kv
    fields: dict[str, Any] = {name: getattr(sampling, name) for name in _SAMPLING if sampling.HasField(name)}
    if sampling.HasField("seed"):
        # The same 64 bits as a signed number, except -1, which would mean a random seed.
        fields["seed"] = sampling.seed - 2**64 if 2**63 <= sampling.seed < 2**64 - 1 else sampling.seed % (2**64 - 1)
    if sampling.HasField("num_sequences"):
        if sampling.num_sequences < 1:
            raise InvalidRequest("num_sequences must be at least 1, got 0.", field="num_sequences")
        fields["n"] = sampling.num_sequences
    fields["structured_outputs"] = _constraint_of(message)
    if kv.bypass_prefix_cache:
        fields["skip_reading_prefix_cache"] = True
    return fields | _stopping_fields(message.stopping) | _logprob_fields(message.response)


def _stopping_fields(stopping: inference_pb2.StoppingOptions) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(stopping, name) for name in _STOPPING if stopping.HasField(name)}
    fields["include_stop_str_in_output"] = stopping.include_stop_in_output
    kinds = [condition.WhichOneof("condition") for condition in stopping.conditions]
    if None in kinds:
        text = f"stopping.conditions[{kinds.index(None)}] needs `stop_text` or `stop_token_id`."
        raise InvalidRequest(text, field="stopping.conditions")
    pairs = list(zip(kinds, stopping.conditions, strict=True))
    fields["stop"] = [condition.stop_text for kind, condition in pairs if kind == "stop_text"]
    fields["stop_token_ids"] = [condition.stop_token_id for kind, condition in pairs if kind == "stop_token_id"]
    return fields


def _logprob_fields(response: inference_pb2.ResponseOptions) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    given = {field.name for field, _ in response.ListFields()}
    if response.return_output_logprobs:
        fields["logprobs"] = _number_of(response.output_candidates, "output_candidates")
        fields["logprob_token_ids"] = list(response.output_candidates.token_ids.ids) or None
    else:
        refuse(given, ("output_candidates",), "it needs return_output_logprobs")
    if response.return_prompt_logprobs:
        if response.prompt_candidates.HasField("token_ids"):
            text = "prompt_candidates.token_ids is not supported: only the most likely tokens of a prompt are known."
            raise InvalidRequest(text, field="prompt_candidates.token_ids")
        fields["prompt_logprobs"] = _number_of(response.prompt_candidates, "prompt_candidates")
    else:
        refuse(given, ("prompt_candidates", "prompt_logprob_start"), "it needs return_prompt_logprobs")
    return fields


def _number_of(wanted: inference_pb2.CandidateTokenSelection, name: str) -> int:
    """Return the number of most likely tokens that a selection needs; -1: all."""
    if wanted.WhichOneof("selection") == "token_ids" and not wanted.token_ids.ids:
        raise InvalidRequest(f"{name}.token_ids needs at least one id.", field=f"{name}.token_ids")
    return -1 if wanted.HasField("all") else wanted.top_n


def _constraint_of(message: inference_pb2.GenerateRequest) -> StructuredOutputsParams | None:
    if not message.HasField("guided"):
        return None
    guided = message.guided
    if guided.backend not in _GRAMMAR_BACKENDS:
        text = f"guided.backend={guided.backend[:64]!r} is not supported: llguidance compiles all constraints."
        raise InvalidRequest(text, field="guided.backend")
    match guided.WhichOneof("guide"):
        case None:
            raise InvalidRequest("`guided` needs a constraint, such as `json_schema`.", field="guided")
        case "choice":
            return StructuredOutputsParams(choice=list(guided.choice.choices))
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case kind:
            return StructuredOutputsParams(**{_GUIDES[kind]: getattr(guided, kind)})


def _refuse_unknown_fields(message: Message, path: str = "") -> None:
    """Raise InvalidRequest with path and field number if a message, or a message inside it, has an unknown field.

    A field of another revision changes the meaning of a request, so it must not be ignored. Only its number is known here.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        name = f"{path}{unknown[0].field_number}"
        text = f"Field {name} of {message.DESCRIPTOR.name} is not supported: it is not in schema revision {_REVISION}."
        raise InvalidRequest(text, field=name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                _refuse_unknown_fields(inner, f"{path}{field.name}.")
