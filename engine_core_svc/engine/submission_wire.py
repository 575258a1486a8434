"""Submission wire: decodes EngineCoreRequest messages."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tetrad.engine_core_svc.core.adapter import LoraRef
from tetrad.engine_core_svc.core.kv_transfer import NO_TRANSFER, KvTransfer
from tetrad.engine_core_svc.core.media import NO_INPUTS, EncoderInput, MediaSpan
from tetrad.engine_core_svc.core.media_wire import decode_span
from tetrad.engine_core_svc.core.payload import WorkerPayload
from tetrad.engine_core_svc.core.request import RepetitionRule, StopRules
from tetrad.engine_core_svc.core.wire import PoolingMessage, SamplingMessage, decode_transfer
from tetrad.engine_core_svc.engine.adapters_wire import decode_lora, decode_prompt_embeds
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language, refusal
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.request_context import RequestContext
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.unread_fields import UnreadFields
from tetrad.v1 import engine_core_pb2, types_pb2

_OWNER = "This engine"
UNREAD_OF_REQUEST = UnreadFields(
    engine_core_pb2.EngineCoreRequest,
    (
        "encoder_prompt_token_ids",
        "resumable",
        "reasoning_ended",
        "session_id",
        "kv_transfer_params",
    ),
    owner=_OWNER,
)
_PARAMS = ("sampling_params", "sampling_params_index", "pooling_params")


@dataclass(frozen=True, slots=True)
class Submission:
    """An EngineCoreRequest, decoded but not yet checked against the engine's limits."""

    request_id: str
    handle: int
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    stop: StopRules
    priority: int
    arrival_time: float
    timeout_s: float | None
    cache_salt: str
    skip_reading_prefix_cache: bool
    constraint: Constraint | None
    payload: WorkerPayload
    resumed: bool
    context: RequestContext
    pools: bool = False
    lora: LoraRef | None = None
    call_number: int = 0
    pools_tokens: bool = False
    predicted_token_ids: Sequence[int] = ()
    transfer: KvTransfer = NO_TRANSFER
    encoder_inputs: Mapping[str, EncoderInput] = field(default_factory=lambda: NO_INPUTS)
    """Identifier -> item of the request's media; those that other requests have may be missing."""


class SharedSampling:
    """Sampling parameters of requests in one message, each decoded once, when the first request needs it."""

    def __init__(self, messages: Sequence[types_pb2.SamplingParams] = ()) -> None:
        self._messages = messages
        self._decoded: dict[int, tuple[SamplingMessage, Constraint | None]] = {}

    def decode(self, index: int) -> tuple[SamplingMessage, Constraint | None]:
        """Return the parameters at this index, as the worker gets them, and their constraint.

        Raises:
            InvalidRequest: there is no such index, or the constraint is malformed.
        """
        if index >= len(self._messages):
            text = f"sampling_params_index is {index}, but the message has {len(self._messages)} shared_sampling_params."
            raise InvalidRequest(text, field="sampling_params_index")
        found = self._decoded.get(index)
        if found is None:
            # Copy it: a reference to a part of the message would keep all of it in memory.
            params = types_pb2.SamplingParams()
            params.CopyFrom(self._messages[index])
            found = self._decoded[index] = _split_constraint(params)
        return found


def decode_submission(
    message: engine_core_pb2.EngineCoreRequest,
    shared: SharedSampling | None = None,
    inputs: Mapping[str, EncoderInput] = NO_INPUTS,
) -> Submission:
    """Return a request message as a Submission.

    Args:
        message: the request.
        shared: sampling parameters that requests of the same message share.
        inputs: its media, which are decoded before (core/media_wire.py).

    Raises:
        InvalidRequest, Unsupported: the message has values or fields that this engine core cannot read.
    """
    _refuse_unsupported(message)
    context = RequestContext.from_headers(message.trace_headers)
    if message.HasField("pooling_params"):
        return _decode_pooling(message, context, inputs)
    if message.HasField("sampling_params_index"):
        encoded, constraint = (shared or SharedSampling()).decode(message.sampling_params_index)
    else:
        encoded, constraint = _split_constraint(message.sampling_params)
    params = encoded.message
    eos_token_id = message.eos_token_id if message.HasField("eos_token_id") else None
    return Submission(
        request_id=message.request_id,
        handle=message.handle,
        prompt_token_ids=unpack_u32(message.prompt_token_ids),
        output_token_ids=unpack_u32(message.resumed_output_token_ids),
        stop=_decode_stop_rules(params, eos_token_id),
        priority=message.priority,
        arrival_time=message.arrival_time_unix_nanos / 1e9,
        timeout_s=_decode_timeout_s(message),
        cache_salt=message.cache_salt,
        # Log-probabilities of a prompt require that all of it is computed.
        skip_reading_prefix_cache=params.skip_reading_prefix_cache
        or params.HasField("prompt_logprobs")
        or params.HasField("prompt_score_ids"),
        constraint=constraint,
        payload=WorkerPayload(
            encoded,
            eos_token_id,
            context,
            message.seed if message.HasField("seed") else None,
            decode_prompt_embeds(message) if message.HasField("prompt_embeds") else None,
            _decode_media(message),
        ),
        resumed=message.resumed or bool(message.resumed_output_token_ids),
        context=context,
        lora=decode_lora(message.lora_request) if message.HasField("lora_request") else None,
        predicted_token_ids=unpack_u32(message.predicted_token_ids),
        call_number=message.call_number,
        transfer=decode_transfer(message),
        encoder_inputs=inputs,
    )


def _decode_pooling(
    message: engine_core_pb2.EngineCoreRequest, context: RequestContext, inputs: Mapping[str, EncoderInput]
) -> Submission:
    if message.HasField("prompt_embeds"):
        raise Unsupported("prompt_embeds is not supported for pooling requests.", field="prompt_embeds")
    params = types_pb2.PoolingParams()
    params.CopyFrom(message.pooling_params)
    pools_tokens = params.task.startswith("token_")
    return Submission(
        request_id=message.request_id,
        handle=message.handle,
        prompt_token_ids=unpack_u32(message.prompt_token_ids),
        output_token_ids=unpack_u32(message.resumed_output_token_ids),
        stop=StopRules(max_tokens=0),
        priority=message.priority,
        arrival_time=message.arrival_time_unix_nanos / 1e9,
        timeout_s=_decode_timeout_s(message),
        cache_salt=message.cache_salt,
        skip_reading_prefix_cache=params.skip_reading_prefix_cache or pools_tokens,
        constraint=None,
        payload=WorkerPayload(PoolingMessage(params), context=context, media=_decode_media(message)),
        resumed=message.resumed,
        context=context,
        pools=True,
        lora=decode_lora(message.lora_request) if message.HasField("lora_request") else None,
        call_number=message.call_number,
        pools_tokens=pools_tokens,
        transfer=decode_transfer(message),
        encoder_inputs=inputs,
    )


def _decode_media(message: engine_core_pb2.EngineCoreRequest) -> Sequence[MediaSpan]:
    if message.mm_features and message.HasField("prompt_embeds"):
        raise Unsupported("prompt_embeds is not supported together with mm_features.", field="prompt_embeds")
    return tuple(map(decode_span, message.mm_features))


def _decode_timeout_s(message: engine_core_pb2.EngineCoreRequest) -> float | None:
    """Return the seconds that a request may take from now; None: no limit."""
    if message.HasField("timeout_nanos"):
        return message.timeout_nanos / 1e9
    if message.HasField("deadline_unix_nanos"):
        return max(0.0, message.deadline_unix_nanos / 1e9 - time.time())
    return None


def _refuse_unsupported(message: engine_core_pb2.EngineCoreRequest) -> None:
    if sum(map(message.HasField, _PARAMS)) != 1:
        raise InvalidRequest(f"Exactly one of {', '.join(_PARAMS)} must be set.", field="sampling_params")
    UNREAD_OF_REQUEST.refuse(message)


def _split_constraint(params: types_pb2.SamplingParams) -> tuple[SamplingMessage, Constraint | None]:
    """Take the constraint out of parameters: the worker gets masks instead."""
    if not params.HasField("structured_outputs"):
        return SamplingMessage(params), None
    constraint = _decode_constraint(params)
    params.ClearField("structured_outputs")
    return SamplingMessage(params), constraint


def _decode_constraint(params: types_pb2.SamplingParams) -> Constraint:
    message = params.structured_outputs
    kind = message.WhichOneof("constraint")
    if kind is None or (kind == "json_object" and not message.json_object):
        raise refusal("structured_outputs must have exactly one constraint.")
    if kind == "choice":
        text = json.dumps(list(message.choice.choices))
    else:
        text = "" if kind == "json_object" else getattr(message, kind)
    language = Language(
        kind=kind,
        text=text,
        disable_any_whitespace=message.disable_any_whitespace,
        disable_additional_properties=message.disable_additional_properties,
        whitespace_pattern=message.whitespace_pattern if message.HasField("whitespace_pattern") else None,
    )
    if message.opening_token_ids and not message.start_after_token_ids:
        raise refusal("structured_outputs.opening_token_ids needs start_after_token_ids.")
    return Constraint(
        language,
        opening=tuple(message.opening_token_ids),
        start_after=tuple(message.start_after_token_ids),
        ignore_eos=params.ignore_eos,
        min_tokens=params.min_tokens,
        stop_token_ids=tuple(params.stop_token_ids),
        allowed_token_ids=tuple(params.allowed_token_ids),
    )


def _decode_stop_rules(params: types_pb2.SamplingParams, eos_token_id: int | None) -> StopRules:
    rule = params.repetition_detection
    return StopRules(
        max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        min_tokens=params.min_tokens,
        eos_token_id=None if params.ignore_eos else eos_token_id,
        stop_token_ids=frozenset(params.stop_token_ids),
        repetition=RepetitionRule(rule.max_pattern_size, rule.min_pattern_size, rule.min_count)
        if rule.max_pattern_size and rule.min_count > 1
        else None,
    )
