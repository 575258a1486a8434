"""Wire: protobuf messages <-> the engine core's own values. Nothing else here reads or writes a message's fields.

Hot messages are columns (services/columns.py): one step of 256 requests costs well under a millisecond.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tetrad.engine_core_svc.outbox import Message, Notice, Rejection, StepOutputs
from tetrad.engine_core_svc.request import RepetitionRule, StopRules
from tetrad.engine_core_svc.scheduler.output import (
    EngineCoreOutput,
    FinishReason,
    Logprobs,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from tetrad.engine_core_svc.stats import SchedulerStats
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language, refusal
from tetrad.services.columns import pack_u32, split_rows, unpack_u32
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.message_size import BATCH_BYTES, DEFAULT_MAX_MESSAGE_BYTES, too_large
from tetrad.services.request_context import NO_CONTEXT, RequestContext
from tetrad.services.status import from_status, to_status
from tetrad.v1 import engine_core_pb2, types_pb2, worker_pb2

_UNREAD_MESSAGES = ("pooling_params", "lora_request", "prompt_embeds", "reasoning_ended", "kv_transfer_params")
_UNREAD_VALUES = ("mm_features", "prompt_is_token_ids", "resumable", "session_id")
"""Fields of a request that nothing reads yet, with and without presence: refused, as they would change what is generated."""
_PARAMS = ("sampling_params", "sampling_params_index", "pooling_params")
_ENTRY_BYTES = 16
"""Bounds what a message adds to an entry: tags and lengths."""
_HEAD_BYTES = 256
"""Bounds what a message of rich outputs has besides them."""

# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submission:
    """An EngineCoreRequest as it came, decoded but not yet checked against the engine's limits."""

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
    payload: "WorkerPayload"
    resumed: bool
    context: RequestContext


@dataclass(frozen=True, slots=True)
class WorkerPayload:
    """What the worker needs of a request and the engine core only passes on.

    Attributes:
        sampling_params: may be one object with that of other requests; never changed.
        eos_token_id: of the model.
        context: of the client's request.
        seed: replaces that of the parameters; None: theirs.
    """

    sampling_params: types_pb2.SamplingParams
    eos_token_id: int | None
    context: RequestContext = NO_CONTEXT
    seed: int | None = None


class SharedSampling:
    """Sampling parameters of requests in one message, each decoded once, when the first request needs it."""

    def __init__(self, messages: Sequence[types_pb2.SamplingParams] = ()) -> None:
        self._messages = messages
        self._decoded: dict[int, tuple[types_pb2.SamplingParams, Constraint | None]] = {}

    def decode(self, index: int) -> tuple[types_pb2.SamplingParams, Constraint | None]:
        """Return the parameters of this index, as the worker gets them, and the constraint that they hold.

        Raises:
            InvalidRequest: there is no such index, or the constraint is none.
        """
        if index >= len(self._messages):
            text = f"sampling_params_index is {index}, but the message has {len(self._messages)} shared_sampling_params."
            raise InvalidRequest(text, field="sampling_params_index")
        found = self._decoded.get(index)
        if found is None:
            # A copy: a part of the message would keep all of it in memory.
            params = types_pb2.SamplingParams()
            params.CopyFrom(self._messages[index])
            found = self._decoded[index] = _split_constraint(params)
        return found


def submission_from_wire(message: engine_core_pb2.EngineCoreRequest, shared: SharedSampling | None = None) -> Submission:
    """Return a request as own value.

    Args:
        message: the request.
        shared: sampling parameters that stand beside it.

    Raises:
        InvalidRequest, Unsupported: for what this engine core cannot read.
    """
    _refuse_unsupported(message)
    context = RequestContext.from_headers(message.trace_headers)
    if message.HasField("sampling_params_index"):
        params, constraint = (shared or SharedSampling()).decode(message.sampling_params_index)
    else:
        params, constraint = _split_constraint(message.sampling_params)
    eos_token_id = message.eos_token_id if message.HasField("eos_token_id") else None
    return Submission(
        request_id=message.request_id,
        handle=message.handle,
        prompt_token_ids=unpack_u32(message.prompt_token_ids),
        output_token_ids=unpack_u32(message.resumed_output_token_ids),
        stop=_stop_rules(params, eos_token_id),
        priority=message.priority,
        arrival_time=message.arrival_time_unix_nanos / 1e9,
        timeout_s=_timeout_s(message),
        cache_salt=message.cache_salt,
        # Log-probabilities of a prompt come from computing all of it.
        skip_reading_prefix_cache=params.skip_reading_prefix_cache or params.HasField("prompt_logprobs"),
        constraint=constraint,
        payload=WorkerPayload(params, eos_token_id, context, message.seed if message.HasField("seed") else None),
        resumed=message.resumed or bool(message.resumed_output_token_ids),
        context=context,
    )


def _timeout_s(message: engine_core_pb2.EngineCoreRequest) -> float | None:
    """Return how long a request may take from now; None: for ever."""
    if message.HasField("timeout_nanos"):
        return message.timeout_nanos / 1e9
    if message.HasField("deadline_unix_nanos"):
        return max(0.0, message.deadline_unix_nanos / 1e9 - time.time())
    return None


def _refuse_unsupported(message: engine_core_pb2.EngineCoreRequest) -> None:
    if sum(map(message.HasField, _PARAMS)) != 1:
        raise InvalidRequest(f"Exactly one of {', '.join(_PARAMS)} must be set.", field="sampling_params")
    for field in _UNREAD_MESSAGES:
        if message.HasField(field):
            raise Unsupported(f"This engine does not support {field}.", field=field)
    for field in _UNREAD_VALUES:
        if getattr(message, field):
            raise Unsupported(f"This engine does not support {field}.", field=field)


def _split_constraint(params: types_pb2.SamplingParams) -> tuple[types_pb2.SamplingParams, Constraint | None]:
    """Take the constraint out of parameters: the worker gets masks instead. Unsupported for what nobody would read."""
    if params.extra_args.fields:
        raise Unsupported("This engine does not support extra_args: it has no custom logits processors.", field="extra_args")
    if not params.HasField("structured_outputs"):
        return params, None
    constraint = _constraint(params)
    params.ClearField("structured_outputs")
    return params, constraint


def _constraint(params: types_pb2.SamplingParams) -> Constraint:
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


def _stop_rules(params: types_pb2.SamplingParams, eos_token_id: int | None) -> StopRules:
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


# --- plans and results ------------------------------------------------------------------------------------------------


def plan_to_wire(plan: SchedulerOutput, *, shares_params: bool = True) -> worker_pb2.ExecuteRequest:
    """Return a plan as the worker gets it.

    Args:
        plan: the plan.
        shares_params: whether the worker reads parameters that several requests share, and seeds beside them.
    """
    columns = plan.cached_requests
    shared = _shared_params(plan.new_requests) if shares_params else {}
    step = worker_pb2.SchedulerOutput(
        step_id=plan.step_id,
        new_requests=[_new_request_to_wire(new, shared, has_seed=shares_params) for new in plan.new_requests],
        shared_sampling_params=[params for _, params in shared.values()],
        removed_handles=pack_u32(plan.removed_keys),
        total_num_scheduled_tokens=plan.total_num_scheduled_tokens,
    )
    if columns.keys:
        step.cached_requests.handles = pack_u32(columns.keys)
        step.cached_requests.num_scheduled_tokens = pack_u32(columns.num_scheduled_tokens)
        step.cached_requests.num_computed_tokens = pack_u32(columns.num_computed_tokens)
        step.cached_requests.new_blocks.add(
            num_blocks=pack_u32(columns.num_new_blocks), block_ids=pack_u32(columns.new_block_ids)
        )
    masks = plan.grammar_masks
    if masks is not None:
        step.grammar_bitmask.handles = pack_u32(masks.keys)
        step.grammar_bitmask.bitmask = masks.masks
        step.grammar_bitmask.num_words = masks.num_words
    _add_copies(step.swap_out, plan.swaps.out)
    _add_copies(step.swap_in, plan.swaps.back)
    return worker_pb2.ExecuteRequest(step=step)


def _add_copies(message: worker_pb2.BlockCopies, copies: Sequence[tuple[int, int]]) -> None:
    if copies:
        message.source_block_ids = pack_u32([source for source, _ in copies])
        message.target_block_ids = pack_u32([target for _, target in copies])


def _shared_params(requests: Sequence[NewRequestData]) -> dict[int, tuple[int, types_pb2.SamplingParams]]:
    """Return the parameters that several requests have, by their identity, with their places in the message."""
    counts = Counter(id(new.payload.sampling_params) for new in requests)
    params = {id(new.payload.sampling_params): new.payload.sampling_params for new in requests}
    shared = [identity for identity, count in counts.items() if count > 1]
    return {identity: (index, params[identity]) for index, identity in enumerate(shared)}


def _new_request_to_wire(
    new: NewRequestData, shared: dict[int, tuple[int, types_pb2.SamplingParams]], *, has_seed: bool
) -> worker_pb2.NewRequestData:
    payload: WorkerPayload = new.payload
    index, _ = shared.get(id(payload.sampling_params), (None, None))
    message = worker_pb2.NewRequestData(
        handle=new.key,
        token_ids=pack_u32(new.token_ids),
        num_prompt_tokens=new.num_prompt_tokens,
        num_computed_tokens=new.num_computed_tokens,
        num_scheduled_tokens=new.num_scheduled_tokens,
        block_ids=[pack_u32(new.block_ids)],
        sampling_params=payload.sampling_params if index is None else None,
        sampling_params_index=index,
        seed=payload.seed if has_seed else None,
        request_id=new.request_id,
        eos_token_id=payload.eos_token_id,
        trace_headers=payload.context.headers(),
    )
    if payload.seed is not None and not has_seed:
        message.sampling_params.seed = payload.seed
    return message


def result_from_wire(message: worker_pb2.ModelRunnerOutput) -> ModelRunnerOutput:
    """Return a step's result as own value; InvalidRequest if its columns disagree."""
    keys = unpack_u32(message.handles)
    token_ids = unpack_u32(message.token_ids)
    if len(keys) == len(token_ids):  # no speculation: one token each
        rows: list[Sequence[int]] = [(token_id,) for token_id in token_ids]
    else:
        rows = split_rows(token_ids, unpack_u32(message.num_tokens))
        if len(rows) != len(keys):
            raise InvalidRequest(f"Columns disagree: {len(keys)} requests, but {len(rows)} numbers of tokens.")
    return ModelRunnerOutput(
        step_id=message.step_id,
        keys=keys,
        token_ids=rows,
        logprobs={key: rows for group in message.logprobs_by_width for key, rows in _logprobs_by_key(group).items()},
        prompt_logprobs={entry.handle: _logprobs_from_wire(entry.columns) for entry in message.prompt_logprobs},
        failures={failure.handle: from_status(failure.status) for failure in message.failures},
        compute_s=message.compute_seconds,
    )


def _logprobs_from_wire(columns: types_pb2.LogprobsColumns) -> Logprobs:
    return Logprobs(columns.token_ids, columns.logprobs, columns.ranks, columns.num_positions, columns.width)


def _logprobs_by_key(message: worker_pb2.SampleLogprobs) -> dict[int, Logprobs]:
    """Cut columns into one piece per request; positions of one request stand together."""
    columns, row_bytes = message.columns, 4 * message.columns.width
    keys = unpack_u32(message.handles)
    if not _logprobs_from_wire(columns).has_shape(len(keys), columns.width):
        raise InvalidRequest(
            f"Columns disagree: log-probabilities of {len(keys)} positions of {columns.width} candidates have "
            f"{len(columns.token_ids)} bytes of ids, {len(columns.logprobs)} of values and {len(columns.ranks)} of ranks."
        )
    pieces: dict[int, Logprobs] = {}
    for position, key in enumerate(keys):
        row = slice(position * row_bytes, (position + 1) * row_bytes)
        rank = columns.ranks[4 * position : 4 * position + 4]
        piece = Logprobs(columns.token_ids[row], columns.logprobs[row], rank, 1, columns.width)
        earlier = pieces.get(key)
        if earlier is not None:
            piece = replace(
                piece,
                token_ids=earlier.token_ids + piece.token_ids,
                logprobs=earlier.logprobs + piece.logprobs,
                ranks=earlier.ranks + piece.ranks,
                num_positions=earlier.num_positions + 1,
            )
        pieces[key] = piece
    return pieces


# --- outputs ----------------------------------------------------------------------------------------------------------


def message_to_wire(
    message: Message, engine_index: int = 0, most_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
) -> tuple[engine_core_pb2.SessionResponse, StepOutputs | None]:
    """Return an outbox message as the frontend gets it, and the outputs that follow in another one.

    Args:
        message: from the outbox, or what followed before.
        engine_index: of this engine core.
        most_bytes: that the frontend reads. An output that alone is larger becomes an error, for its request to be aborted.
    """
    if isinstance(message, StepOutputs):
        outputs, rest = _outputs_to_wire(message, engine_index, most_bytes)
        return engine_core_pb2.SessionResponse(outputs=outputs), rest
    if isinstance(message, Rejection):
        rejected = engine_core_pb2.RequestRejected(request_id=message.request_id, status=to_status(message.error))
        return engine_core_pb2.SessionResponse(rejected=rejected), None
    return engine_core_pb2.SessionResponse(notice=_notice_to_wire(message)), None


def _notice_to_wire(notice: Notice) -> engine_core_pb2.EngineNotice:
    return engine_core_pb2.EngineNotice(kind=f"ENGINE_NOTICE_KIND_{notice.kind}", text=notice.text)


def _outputs_to_wire(
    step: StepOutputs, engine_index: int, most_bytes: int
) -> tuple[engine_core_pb2.EngineCoreOutputs, StepOutputs | None]:
    plain = [output for output in step.outputs if output.is_plain]
    message = engine_core_pb2.EngineCoreOutputs(
        step_id=step.step_id, engine_index=engine_index, timestamp_monotonic_s=step.timestamp
    )
    if plain:
        message.decode.handles = pack_u32([output.request.handle for output in plain])
        message.decode.num_tokens = pack_u32([len(output.new_token_ids) for output in plain])
        message.decode.token_ids = pack_u32([token for output in plain for token in output.new_token_ids])
    if step.stats is not None:
        message.scheduler_stats.CopyFrom(stats_to_wire(step.stats))
    rich = [output for output in step.outputs if not output.is_plain]
    num_taken = _add_rich(message, rich, step.timestamp, most_bytes)
    rest = StepOutputs(step.step_id, rich[num_taken:], timestamp=step.timestamp) if num_taken < len(rich) else None
    return message, rest


def _add_rich(
    message: engine_core_pb2.EngineCoreOutputs, outputs: Sequence[EngineCoreOutput], timestamp: float, most_bytes: int
) -> int:
    """Add outputs up to the size of a message; return how many it has taken."""
    if not outputs:
        return 0
    room_bytes = min(BATCH_BYTES, most_bytes) - message.ByteSize()
    for num_taken, output in enumerate(outputs):
        encoded = _output_to_wire(output, timestamp)
        num_bytes = encoded.ByteSize() + _ENTRY_BYTES
        if num_bytes > most_bytes - _HEAD_BYTES:
            error = too_large("What one step brought for the request", num_bytes, most_bytes)
            encoded = _output_to_wire(EngineCoreOutput(output.request, [], FinishReason.ERROR, error=error), timestamp)
            num_bytes = encoded.ByteSize() + _ENTRY_BYTES
        room_bytes -= num_bytes
        is_first = not num_taken and not message.HasField("decode")
        if room_bytes < 0 and not is_first:
            return num_taken
        message.outputs.append(encoded)
    return len(outputs)


def _output_to_wire(output: EngineCoreOutput, timestamp: float) -> engine_core_pb2.EngineCoreOutput:
    message = engine_core_pb2.EngineCoreOutput(
        handle=output.request.handle,
        request_id=output.request.request_id,
        new_token_ids=pack_u32(output.new_token_ids),
        finish_reason=int(output.finish_reason or 0),  # type: ignore[arg-type] # the enum's numbers are the contract's
    )
    if isinstance(output.stop_reason, int):
        message.stop_reason.token_id = output.stop_reason
    elif output.stop_reason is not None:
        message.stop_reason.text = output.stop_reason
    if output.logprobs is not None:
        message.new_logprobs.CopyFrom(_logprobs_to_wire(output.logprobs))
    if output.prompt_logprobs is not None:
        message.new_prompt_logprobs.CopyFrom(_logprobs_to_wire(output.prompt_logprobs))
    if output.error is not None:
        message.status.CopyFrom(to_status(output.error))
    if output.prefill_stats is not None:
        stats = output.prefill_stats
        message.prefill_stats.num_prompt_tokens = stats.num_prompt_tokens
        message.prefill_stats.num_cached_tokens = stats.num_cached_tokens
        message.prefill_stats.num_local_cached_tokens = stats.num_cached_tokens
        message.prefill_stats.num_computed_tokens = stats.num_prompt_tokens - stats.num_cached_tokens
        message.events.add(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_QUEUED, timestamp_monotonic_s=output.request.queued_at)
        message.events.add(
            type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_SCHEDULED, timestamp_monotonic_s=output.request.scheduled_at
        )
    if output.finish_reason is not None:
        for _ in range(output.request.num_preemptions):
            message.events.add(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_PREEMPTED, timestamp_monotonic_s=timestamp)
    return message


def _logprobs_to_wire(logprobs: Logprobs) -> types_pb2.LogprobsColumns:
    return types_pb2.LogprobsColumns(
        token_ids=logprobs.token_ids,
        logprobs=logprobs.logprobs,
        ranks=logprobs.ranks,
        num_positions=logprobs.num_positions,
        width=logprobs.width,
    )


def stats_to_wire(stats: SchedulerStats) -> engine_core_pb2.SchedulerStats:
    """Return the scheduler's numbers as a message."""
    return engine_core_pb2.SchedulerStats(
        num_running_reqs=stats.num_running_reqs,
        num_waiting_reqs=stats.num_waiting_reqs,
        kv_cache_usage=stats.kv_cache_usage,
        prefix_cache_queries=stats.prefix_cache_queries,
        prefix_cache_hits=stats.prefix_cache_hits,
        num_preemptions=stats.num_preemptions,
        step_counter=stats.step_counter,
    )
