"""Requests: decodes a GenerateRequest of vllm.Inference for AsyncLLM. A zero means "not set": the model's default, or off."""

from typing import Any

from tetrad.frontend.api.gateways.common.calls import GatewayRequest
from tetrad.frontend.api.gateways.common.refusals import refuse
from tetrad.frontend.api.grpc.sampling_fields import as_written
from tetrad.frontend.llm.served_model import ModelNames
from tetrad.frontend.request.kv_transfer import KV_TRANSFER_PARAMS, KvTransfer
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest, NotFound
from tetrad.services.rpc.struct_values import decode_struct
from tetrad.vllm_api import inference_pb2

_RANK_KEY = "x-data-parallel-rank"
# Name in this API -> name in SamplingParams.
_SAMPLING = {"num_sequences": "n", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
_STOPPING = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


def request_of(
    message: inference_pb2.GenerateRequest,
    metadata: dict[str, str],
    defaults: dict[str, Any],
    names: ModelNames,
    *,
    is_stream: bool,
) -> GatewayRequest:
    """Return the request in a message.

    Args:
        message: the gateway's message.
        metadata: the metadata of the call.
        defaults: arguments of SamplingParams for fields that the message does not set.
        names: the names of the model and its adapters.
        is_stream: whether outputs are streamed as deltas.

    Raises:
        InvalidRequest: the request is invalid, or needs an unsupported feature.
        NotFound: the named model or adapter does not exist.
    """
    refuse({field.name for field, _ in message.ListFields()}, ("media",), "send images over HTTP, or to tetrad.v1")
    kv_fields = {field.name for field, _ in message.kv.ListFields()}
    refuse(kv_fields, ("ec_transfer_params",), "there are no connectors")
    transfer = KvTransfer.of(decode_struct(message.kv.kv_transfer_params)) if "kv_transfer_params" in kv_fields else None
    if transfer is not None and transfer.do_remote_decode:
        text = f"{KV_TRANSFER_PARAMS}.do_remote_decode is not supported: an answer has no field for the result."
        raise InvalidRequest(text, field=KV_TRANSFER_PARAMS)
    lora = _adapter_of(message, names)
    if message.sampling.num_sequences > 1 and not is_stream:
        text = f"num_sequences must be 1 but on a stream, got {message.sampling.num_sequences}: the answer holds one output."
        raise InvalidRequest(text, field="num_sequences")
    kind = RequestOutputKind.DELTA if is_stream else RequestOutputKind.FINAL_ONLY
    params = SamplingParams(**{"max_tokens": None, **defaults, **_sampling_fields(message)}, output_kind=kind)
    options = {
        "priority": message.priority,
        "cache_salt": message.kv.cache_salt,
        "truncate_prompt_tokens": message.truncate_prompt_tokens or None,
        "data_parallel_rank": _rank_of(metadata),
        "lora_request": lora,
        "kv_transfer": transfer,
    }
    return GatewayRequest(message.request_id, _prompt_of(message), params, options)


def _adapter_of(message: inference_pb2.GenerateRequest, names: ModelNames) -> LoRARequest | None:
    """Return the adapter that `model` or `lora_name` names; None: the base model."""
    named = names.lora_of(names.resolve(message.model))
    if not message.lora_name:
        return named
    found = names.adapters.get(message.lora_name)
    if found is None:
        raise NotFound(f"The adapter `{message.lora_name}` does not exist.", field="lora_name")
    if named not in (None, found):
        text = f"`model` names the adapter `{message.model}`, and lora_name `{message.lora_name}`: give one of them."
        raise InvalidRequest(text, field="lora_name")
    return found


def _prompt_of(message: inference_pb2.GenerateRequest) -> PromptType:
    match message.WhichOneof("prompt"):
        case "token_ids":
            return TokensPrompt(prompt_token_ids=list(message.token_ids.ids))
        case "text":
            return message.text
        case _:
            raise InvalidRequest("A request needs `text` or `token_ids`.", field="prompt")


def _rank_of(metadata: dict[str, str]) -> int | None:
    text = metadata.get(_RANK_KEY)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidRequest(f"{_RANK_KEY} must be a number, got {text[:64]!r}.", field=_RANK_KEY)
    return int(text)


def _sampling_fields(message: inference_pb2.GenerateRequest) -> dict[str, Any]:
    sampling, decoding, stopping, response = message.sampling, message.decoding, message.stopping, message.response
    fields: dict[str, Any] = {here: value for there, here in _SAMPLING.items() if (value := getattr(sampling, there))}
    fields |= {name: value for name in _PENALTIES if (value := getattr(decoding, name))}
    fields["temperature"] = message.temperature
    fields = {name: as_written(value) if isinstance(value, float) else value for name, value in fields.items()}
    fields |= {here: value for there, here in _STOPPING.items() if (value := getattr(stopping, there))}
    fields["seed"] = sampling.seed if sampling.HasField("seed") else None
    fields["logit_bias"] = dict(decoding.logit_bias) or None
    fields["allowed_token_ids"] = list(decoding.allowed_token_ids) or None
    fields["structured_outputs"] = _constraint_of(decoding)
    fields["stop_token_ids"] = list(stopping.stop_token_ids)
    fields["ignore_eos"] = stopping.ignore_eos
    fields["skip_reading_prefix_cache"] = message.kv.bypass_prefix_cache or None
    return fields | _text_fields(stopping, response) | _logprob_fields(response)


def _text_fields(stopping: inference_pb2.StoppingCriteria, response: inference_pb2.ResponseOptions) -> dict[str, Any]:
    wants_text = response.output_text if response.HasField("output_text") else True
    return {
        "stop": list(stopping.stop_strings),
        "include_stop_str_in_output": stopping.include_stop_strings,
        "skip_special_tokens": response.skip_special_tokens if response.HasField("skip_special_tokens") else True,
        # The search for stop strings needs text.
        "detokenize": wants_text or bool(stopping.stop_strings),
    }


def _logprob_fields(response: inference_pb2.ResponseOptions) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if response.output_logprobs:
        wanted = response.output_candidates
        fields["logprobs"] = _number_of(wanted)
        fields["logprob_token_ids"] = list(wanted.token_ids.ids) or None
    if response.prompt_logprobs:
        if response.prompt_candidates.token_ids.ids:
            text = "prompt_candidates.token_ids is not supported: only the most likely tokens of a prompt are known."
            raise InvalidRequest(text, field="prompt_candidates")
        fields["prompt_logprobs"] = _number_of(response.prompt_candidates)
    return fields


def _number_of(wanted: inference_pb2.CandidateTokens) -> int:
    return -1 if wanted.all else wanted.top_n


def _constraint_of(message: inference_pb2.DecodingParameters) -> StructuredOutputsParams | None:
    match message.WhichOneof("structured_output"):
        case None:
            return None
        case "choice":
            return StructuredOutputsParams(choice=list(message.choice.choices))
        case "json_object":
            return StructuredOutputsParams(json_object=True) if message.json_object else None
        case kind:
            return StructuredOutputsParams(**{kind: getattr(message, kind)})
