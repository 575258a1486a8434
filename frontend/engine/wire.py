"""wire: converts requests to messages of engine cores, and their steps to the frontend's values. It only converts."""

import math
import sys
from array import array
from dataclasses import replace
from itertools import chain, repeat
from typing import cast

from google.protobuf import json_format

from tetrad.frontend.engine.facts_wire import decode_scheduler
from tetrad.frontend.engine.kv_transfer_wire import decode_kv_transfer, encode_kv_transfer
from tetrad.frontend.engine.prepared_request import PreparedRequest
from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.media.speech import SpeechRules
from tetrad.frontend.request.outputs import FinishReasonName, LoRARequest
from tetrad.frontend.request.pooling import PooledTensor, PoolingParams
from tetrad.frontend.request.prompt_embeds import PromptEmbeds
from tetrad.frontend.request.prompt_scores import NO_ID, PromptScores, ScoreIds, rows_of, width_of
from tetrad.frontend.request.sampling_params import RepetitionDetection, SamplingParams
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.request.spec_decode_metrics import RequestSpecDecodeMetrics
from tetrad.frontend.request.steps import LogprobRows, OddOutput, RichUpdate, Step
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import U32_BYTES, pack_u32, split_rows, unpack_f32, unpack_u32
from tetrad.services.rpc.status import from_status
from tetrad.v1 import engine_core_pb2, types_pb2

_FINISH: dict[types_pb2.FinishReason, FinishReasonName] = {
    types_pb2.FINISH_REASON_STOP: "stop",
    types_pb2.FINISH_REASON_LENGTH: "length",
    types_pb2.FINISH_REASON_ABORT: "abort",
    types_pb2.FINISH_REASON_ERROR: "error",
    types_pb2.FINISH_REASON_REPETITION: "repetition",
}
FINISH_REASON_TO_WIRE = {name: number for number, name in _FINISH.items()}

_MAX_I32 = 2**31 - 1
_NO_ID = 2**32 - 1
_MAX_TIMEOUT_NANOS = 2**63 - 1
"""About 292 years; a gRPC client may send a limit of 11,000 years, which fits no field of 64 bits."""


def encode_request(sequence: Sequence, prepared: PreparedRequest) -> engine_core_pb2.EngineCoreRequest:
    """Return the message of one sequence, without the prompt and parameters that all sequences of a request share."""
    request = engine_core_pb2.EngineCoreRequest(
        request_id=sequence.request_id,
        handle=sequence.handle,
        seed=sequence.seed,
        eos_token_id=prepared.eos_token_id,
        priority=prepared.priority,
        arrival_time_unix_nanos=int(prepared.state.metrics.arrival_time * 1e9),
        cache_salt=prepared.cache_salt,
        external_req_id=prepared.state.request_id,
        data_parallel_rank=prepared.data_parallel_rank,
        trace_headers=sequence.span.context.headers(),
        predicted_token_ids=pack_u32(prepared.predicted_ids),
        call_number=prepared.state.call.number,
    )
    if sequence.pooling is not None:
        request.pooling_params.CopyFrom(_encode_pooling(sequence.pooling))
    transfer = prepared.kv_transfer
    # The blocks are held once, whatever n is: for one reader.
    if transfer is not None and (sequence.index == 0 or not transfer.do_remote_decode):
        request.kv_transfer.CopyFrom(encode_kv_transfer(transfer))
    lora = sequence.lora_request
    if lora is not None:
        request.lora_request.CopyFrom(encode_lora(lora))
    return request


def encode_lora(lora: LoRARequest) -> types_pb2.LoraRequest:
    """Return an adapter as a message."""
    return types_pb2.LoraRequest(name=lora.lora_name, id=lora.lora_int_id, path=lora.lora_path, load_inplace=lora.load_inplace)


def decode_lora(message: types_pb2.LoraRequest) -> LoRARequest:
    """Return the adapter of a message."""
    return LoRARequest(message.name, message.id, message.path)


def _encode_pooling(params: PoolingParams) -> types_pb2.PoolingParams:
    return types_pb2.PoolingParams(
        task=params.task or "",
        use_activation=params.use_activation,
        dimensions=params.dimensions,
        token_type_boundary=params.token_type_boundary,
    )


def set_resumed(request: engine_core_pb2.EngineCoreRequest, sequence: Sequence) -> engine_core_pb2.EngineCoreRequest:
    """Add the existing tokens to `request` and return it, marked as resumed: queue limits do not apply to it again."""
    request.resumed = True
    request.resumed_output_token_ids = pack_u32(sequence.output_token_ids)
    return request


def set_embeds(request: engine_core_pb2.EngineCoreRequest, embeds: PromptEmbeds) -> None:
    """Write the embeddings of a prompt into its request."""
    tensor = request.prompt_embeds
    tensor.dtype, tensor.inline = types_pb2.DATA_TYPE_FLOAT32, embeds.content
    tensor.shape.extend((embeds.num_rows, embeds.hidden_size))
    request.prompt_is_token_ids = embeds.is_token_ids


def add_feature(request: engine_core_pb2.EngineCoreRequest, feature: MediaFeature) -> None:
    """Write a preprocessed image of a prompt into its request: the only copy of its tensors, 20 ms for a large one."""
    message = request.mm_features.add()
    message.CopyFrom(cast(types_pb2.MultiModalFeature, feature.message))
    message.offset = feature.offset


def without_tensors(feature: MediaFeature) -> MediaFeature:
    """Return a feature for an engine core that has the tensors of its item already."""
    whole = cast(types_pb2.MultiModalFeature, feature.message)
    # Built anew, of all other fields: a copy of the message would copy its tensors first.
    message = types_pb2.MultiModalFeature(
        **{field.name: value for field, value in whole.ListFields() if field.name != "tensors"}
    )
    return replace(feature, num_bytes=message.ByteSize(), message=message)


def set_time_left(request: engine_core_pb2.EngineCoreRequest, sequence: Sequence) -> None:
    """Write the remaining time into a request just before it is sent."""
    if sequence.deadline is not None:
        remaining_nanos = sequence.deadline.remaining_s * 1e9
        request.timeout_nanos = int(remaining_nanos) if remaining_nanos < _MAX_TIMEOUT_NANOS else _MAX_TIMEOUT_NANOS


def encode_sampling(sequence: Sequence, prepared: PreparedRequest) -> types_pb2.SamplingParams:
    """Return the sampling parameters that all sequences of a request share: all but the seed."""
    params, thinking = sequence.params, prepared.thinking
    message = types_pb2.SamplingParams(
        temperature=params.temperature,
        max_tokens=sequence.max_tokens,
        ignore_eos=params.ignore_eos,
        stop_token_ids=prepared.stop_token_ids,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        logit_bias=params.logit_bias,
        allowed_token_ids=params.allowed_token_ids,
        logprob_token_ids=params.logprob_token_ids,
        bad_words_token_ids=[types_pb2.TokenIds(ids=pack_u32(ids)) for ids in prepared.bad_words_token_ids],
        skip_reading_prefix_cache=params.skip_reading_prefix_cache,
    )
    if params.prompt_logprob_token_ids is not None:
        message.prompt_score_ids.CopyFrom(_encode_score_ids(params.prompt_logprob_token_ids, params.prompt_logprob_start or 0))
    if prepared.audio_positions is not None:
        message.prompt_score_ids.num_positions = prepared.audio_positions
    if thinking is not None:
        message.thinking_token_budget = params.thinking_token_budget or 0
        message.thinking_start_token_ids.extend(thinking.start)
        message.thinking_end_token_ids.extend(thinking.end)
    if prepared.speech_rules is not None:
        message.speech_rules.CopyFrom(_encode_speech_rules(prepared.speech_rules))
    _set_chosen_numbers(message, params, sequence.max_tokens)
    if params.repetition_detection is not None:
        message.repetition_detection.CopyFrom(_encode_repetition(params.repetition_detection))
    if params.structured_outputs is not None:
        message.structured_outputs.CopyFrom(_encode_structured(params.structured_outputs))
    if params.extra_args:
        json_format.ParseDict(params.extra_args, message.extra_args)
    return message


def _encode_speech_rules(rules: SpeechRules) -> types_pb2.SpeechRules:
    return types_pb2.SpeechRules(
        suppressed_token_ids=pack_u32(rules.suppressed_ids),
        suppressed_first_token_ids=pack_u32(rules.suppressed_first_ids),
        first_timestamp_id=rules.first_timestamp_id,
        max_initial_timestamp=rules.max_initial_timestamp,
        written_before=rules.written_before,
    )


def _encode_score_ids(ids: ScoreIds, start: int) -> types_pb2.PromptScoreIds:
    width = width_of(ids)
    padded = (chain(row, repeat(NO_ID, width - len(row))) for row in rows_of(ids))
    column = pack_u32(_NO_ID if each == NO_ID else each for row in padded for each in row)
    return types_pb2.PromptScoreIds(token_ids=column, width=width, start=start)


def _set_chosen_numbers(message: types_pb2.SamplingParams, params: SamplingParams, max_tokens: int) -> None:
    """Write the numbers that differ from their defaults."""
    # Fields with default values stay absent: absent means the default, and up to 64 messages a step are built faster.
    if params.min_tokens:
        message.min_tokens = min(params.min_tokens, max_tokens)
    if params.top_p != 1.0:
        message.top_p = params.top_p
    if params.top_k > 0:
        message.top_k = min(params.top_k, _MAX_I32)
    if params.min_p:
        message.min_p = params.min_p
    if params.presence_penalty:
        message.presence_penalty = params.presence_penalty
    if params.frequency_penalty:
        message.frequency_penalty = params.frequency_penalty
    if params.repetition_penalty != 1.0:
        message.repetition_penalty = params.repetition_penalty


def _encode_repetition(params: RepetitionDetection) -> types_pb2.RepetitionDetection:
    return types_pb2.RepetitionDetection(
        max_pattern_size=params.max_pattern_size, min_pattern_size=params.min_pattern_size, min_count=params.min_count
    )


def _encode_structured(outputs: StructuredOutputsParams) -> types_pb2.StructuredOutputs:
    message = types_pb2.StructuredOutputs(
        disable_any_whitespace=outputs.disable_any_whitespace,
        disable_additional_properties=outputs.disable_additional_properties,
        whitespace_pattern=outputs.whitespace_pattern,
        start_after_token_ids=outputs.start_after_token_ids,
        opening_token_ids=outputs.opening_token_ids,
    )
    if outputs.json is not None:
        message.json_schema = outputs.json_schema
    elif outputs.choice is not None:
        message.choice.choices.extend(outputs.choice)
    elif outputs.json_object is not None:
        message.json_object = outputs.json_object
    else:
        kind = "regex" if outputs.regex is not None else "grammar" if outputs.grammar is not None else "structural_tag"
        setattr(message, kind, getattr(outputs, kind))
    return message


def decode_step(message: engine_core_pb2.EngineCoreOutputs) -> Step:
    """Return an engine step, with an OddOutput for each sequence with inconsistent columns.

    InvalidRequest if the columns of the whole step are inconsistent.
    """
    step = Step(message.engine_index, weight_version=message.weight_version)
    if message.HasField("decode"):
        decode = message.decode
        handles, counts = unpack_u32(decode.handles), unpack_u32(decode.num_tokens)
        rows = split_rows(unpack_u32(decode.token_ids), counts)
        step.updates = [(handle, list(row), None) for handle, row in zip(handles, rows, strict=True)]
    for output in message.outputs:
        try:
            ids, rich = unpack_u32(output.new_token_ids), _decode_rich(output, message.timestamp_monotonic_s)
        except (InvalidRequest, ValueError) as error:  # inconsistent columns
            ids, rich = [], RichUpdate(error=OddOutput(f"The engine core's output contradicts itself: {error}"))
        step.updates.append((output.handle, ids, rich))
    if message.HasField("scheduler_stats"):
        step.scheduler = decode_scheduler(message.scheduler_stats)
    return step


def _decode_rich(output: engine_core_pb2.EngineCoreOutput, told_at: float) -> RichUpdate:
    if output.finish_reason and output.finish_reason not in _FINISH:
        raise ValueError(f"there is no finish reason {output.finish_reason}.")
    rich = RichUpdate(finish_reason=_FINISH.get(output.finish_reason))
    reason = output.stop_reason.WhichOneof("reason")
    if reason is not None:
        rich.stop_reason = getattr(output.stop_reason, reason)
    if output.HasField("status"):
        rich.error = from_status(output.status)
    if output.HasField("new_logprobs"):
        rich.logprobs = _decode_logprob_rows(output.new_logprobs)
    if output.HasField("new_prompt_logprobs"):
        rich.prompt_logprobs = _decode_logprob_rows(output.new_prompt_logprobs)
    if output.HasField("spec_decode_metrics"):
        rich.spec_decode_metrics = _decode_draft_metrics(output.spec_decode_metrics)
    if output.HasField("prompt_scores"):
        rich.prompt_scores = decode_scores(output.prompt_scores)
    if output.HasField("pooling_output"):
        rich.pooled = _decode_pooled(output.pooling_output)
    if output.HasField("prefill_stats"):
        rich.num_cached_tokens = output.prefill_stats.num_cached_tokens
        rich.num_external_tokens = output.prefill_stats.num_external_cached_tokens
    if output.HasField("kv_transfer"):
        rich.kv_transfer = decode_kv_transfer(output.kv_transfer)
    if output.events:
        times = {event.type: event.timestamp_monotonic_s for event in reversed(output.events)}
        queued = times.get(engine_core_pb2.ENGINE_CORE_EVENT_TYPE_QUEUED)
        scheduled = times.get(engine_core_pb2.ENGINE_CORE_EVENT_TYPE_SCHEDULED)
        preempted = engine_core_pb2.ENGINE_CORE_EVENT_TYPE_PREEMPTED
        rich.num_preemptions = sum(event.type == preempted for event in output.events)
        if queued is not None and scheduled is not None:
            rich.queued_time_s, rich.prefill_time_s = scheduled - queued, told_at - scheduled
    return rich


def _decode_draft_metrics(message: engine_core_pb2.SpecDecodeMetrics) -> RequestSpecDecodeMetrics:
    histogram = list(message.histogram) or [0]
    steps = list(message.per_step_accepted), list(message.per_step_drafted)
    return RequestSpecDecodeMetrics(len(histogram) - 1, histogram, message.num_draft_tokens, *steps)


def decode_scores(message: types_pb2.PromptScores) -> PromptScores:
    """Return the scores of a prompt; ValueError if they do not fit their shape."""
    scores = PromptScores(message.scores, message.num_rows, message.width)
    if len(scores.scores) != U32_BYTES * scores.num_rows * scores.width:
        raise ValueError(f"the scores of {scores.num_rows} rows of {scores.width} ids have {len(scores.scores)} bytes.")
    return scores


def _decode_pooled(tensor: types_pb2.Tensor) -> PooledTensor:
    """Return a pooled answer; ValueError for a tensor that is not a float32 vector or matrix, or does not fit its shape."""
    values = array("f", tensor.inline)
    if sys.byteorder == "big":
        values.byteswap()
    shape = tuple(tensor.shape)
    if tensor.dtype != types_pb2.DATA_TYPE_FLOAT32 or len(shape) not in (1, 2) or len(values) != math.prod(shape):
        raise ValueError(f"the pooled tensor of type {tensor.dtype} and shape {shape} has {len(values)} values.")
    return PooledTensor(shape, values)


def _decode_logprob_rows(columns: types_pb2.LogprobsColumns) -> LogprobRows:
    rows = LogprobRows(unpack_u32(columns.token_ids), unpack_f32(columns.logprobs), unpack_u32(columns.ranks), columns.width)
    if not len(rows.token_ids) == len(rows.logprobs) == len(rows.ranks) * rows.width:
        raise InvalidRequest(
            f"Columns disagree: {len(rows.ranks)} positions of {rows.width} candidates, but {len(rows.token_ids)} ids and"
            f" {len(rows.logprobs)} values."
        )
    return rows
