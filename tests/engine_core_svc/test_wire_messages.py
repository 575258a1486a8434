"""Every field of the messages that the engine core reads and writes, one whole message each."""

import json

import pytest

from tetrad.engine_core_svc.api.wire import encode_message
from tetrad.engine_core_svc.core.payload_wire import WorkerPayload
from tetrad.engine_core_svc.core.plan import (
    CachedRequestData,
    EngineCoreOutput,
    FinishReason,
    GrammarMasks,
    Logprobs,
    ModelRunnerOutput,
    NewRequestData,
    PrefillStats,
    SchedulerOutput,
    Swaps,
)
from tetrad.engine_core_svc.core.request import RepetitionRule, Request, StopRules
from tetrad.engine_core_svc.engine.submission_wire import decode_submission
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats
from tetrad.engine_core_svc.sessions.outbox import Notice, Rejection, StepOutputs
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language
from tetrad.engine_core_svc.worker.wire import decode_result, encode_plan
from tetrad.services.columns import pack_f32, pack_u32
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.request_context import RequestContext
from tetrad.services.status import to_status
from tetrad.v1 import engine_core_pb2, types_pb2, worker_pb2

HEADERS = {"x-request-id": "r", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}

# --- requests ---------------------------------------------------------------------------------------------------------


def submitted(**params):
    """Return the submission of a request with these sampling parameters and nothing else."""
    return decode_submission(engine_core_pb2.EngineCoreRequest(sampling_params=types_pb2.SamplingParams(**params)))


def test_a_request_is_read_whole():
    params = types_pb2.SamplingParams(max_tokens=5, min_tokens=2, stop_token_ids=[7, 8], temperature=0.5)
    message = engine_core_pb2.EngineCoreRequest(
        request_id="r",
        handle=3,
        prompt_token_ids=pack_u32([1, 2]),
        resumed_output_token_ids=pack_u32([9]),
        sampling_params=params,
        eos_token_id=4,
        priority=-6,
        arrival_time_unix_nanos=1_500_000_000,
        cache_salt="salt",
        trace_headers=HEADERS,
    )

    read = decode_submission(message)

    assert (read.request_id, read.handle, read.prompt_token_ids, read.output_token_ids) == ("r", 3, [1, 2], [9])
    assert (read.priority, read.arrival_time, read.cache_salt) == (-6, 1.5, "salt")
    assert read.stop == StopRules(max_tokens=5, min_tokens=2, eos_token_id=4, stop_token_ids=frozenset({7, 8}))
    assert read.payload.sampling_params == params
    assert (read.payload.eos_token_id, read.payload.context, read.context) == (
        4,
        read.context,
        RequestContext.from_headers(HEADERS),
    )
    assert (read.resumed, read.constraint, read.skip_reading_prefix_cache) == (True, None, False)


def test_what_a_request_does_not_say_is_not_made_up():
    read = submitted()

    assert read.stop == StopRules()
    assert (read.payload.eos_token_id, read.resumed, read.constraint, read.output_token_ids) == (None, False, None, [])


def test_a_request_says_itself_that_it_was_accepted_before():
    message = engine_core_pb2.EngineCoreRequest(sampling_params=types_pb2.SamplingParams(), resumed=True)

    assert decode_submission(message).resumed


def test_eos_that_is_ignored_stops_nothing_but_the_worker_knows_it():
    message = engine_core_pb2.EngineCoreRequest(sampling_params=types_pb2.SamplingParams(ignore_eos=True), eos_token_id=4)

    read = decode_submission(message)

    assert (read.stop.eos_token_id, read.payload.eos_token_id) == (None, 4)


@pytest.mark.parametrize(
    ("rule", "read"),
    [
        ((4, 2, 3), RepetitionRule(4, 2, 3)),
        ((1, 0, 2), RepetitionRule(1, 0, 2)),
        ((4, 2, 1), None),
        ((0, 0, 3), None),
    ],
)
def test_repetition_needs_a_pattern_and_two_of_it(rule, read):
    most, least, count = rule
    params = types_pb2.RepetitionDetection(max_pattern_size=most, min_pattern_size=least, min_count=count)

    assert submitted(repetition_detection=params).stop.repetition == read


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "sampling_params"),
        ({"pooling_params": types_pb2.PoolingParams()}, "pooling_params"),
        ({"sampling_params": types_pb2.SamplingParams(), "lora_request": types_pb2.LoraRequest()}, "lora_request"),
        ({"sampling_params": types_pb2.SamplingParams(), "prompt_embeds": types_pb2.Tensor()}, "prompt_embeds"),
        ({"sampling_params": types_pb2.SamplingParams(), "mm_features": [types_pb2.MultiModalFeature()]}, "mm_features"),
    ],
)
def test_what_this_engine_core_cannot_do_is_refused_by_its_field(fields, field):
    with pytest.raises((InvalidRequest, Unsupported), match=field) as refused:
        decode_submission(engine_core_pb2.EngineCoreRequest(**fields))

    assert refused.value.field == field


def test_a_constraint_is_read_whole_and_kept_from_the_worker():
    outputs = types_pb2.StructuredOutputs(
        regex="a+",
        disable_any_whitespace=True,
        disable_additional_properties=True,
        whitespace_pattern=" ?",
        opening_token_ids=[1],
        start_after_token_ids=[2, 3],
    )

    read = submitted(
        structured_outputs=outputs, ignore_eos=True, min_tokens=4, stop_token_ids=[5], allowed_token_ids=[6, 7], temperature=0.5
    )

    language = Language("regex", "a+", disable_any_whitespace=True, disable_additional_properties=True, whitespace_pattern=" ?")
    assert read.constraint == Constraint(
        language, (1,), (2, 3), ignore_eos=True, min_tokens=4, stop_token_ids=(5,), allowed_token_ids=(6, 7)
    )
    assert not read.payload.sampling_params.HasField("structured_outputs")
    assert read.payload.sampling_params.temperature == 0.5


@pytest.mark.parametrize(
    ("fields", "language"),
    [
        ({"json_schema": "{}"}, Language("json_schema", "{}")),
        ({"json_object": True}, Language("json_object", "")),
        ({"choice": types_pb2.ChoiceList(choices=["a", "b"])}, Language("choice", json.dumps(["a", "b"]))),
        ({"grammar": "root ::= 'a'"}, Language("grammar", "root ::= 'a'")),
        ({"regex": "a", "start_after_token_ids": [1]}, Language("regex", "a")),
    ],
    ids=["schema", "object", "choice", "grammar", "start"],
)
def test_each_kind_of_constraint_has_its_text_and_no_options_unless_given(fields, language):
    constraint = submitted(structured_outputs=types_pb2.StructuredOutputs(**fields)).constraint

    assert constraint.language == language


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "must have exactly one constraint"),
        ({"json_object": False}, "must have exactly one constraint"),
        ({"regex": "a", "opening_token_ids": [1]}, "opening_token_ids needs start_after_token_ids"),
    ],
)
def test_a_constraint_that_says_nothing_is_refused(fields, text):
    with pytest.raises(InvalidRequest, match=text):
        submitted(structured_outputs=types_pb2.StructuredOutputs(**fields))


# --- plans and results ------------------------------------------------------------------------------------------------


def test_a_plan_is_written_whole():
    params = types_pb2.SamplingParams(temperature=0.5)
    new = NewRequestData(
        key=1,
        request_id="r",
        token_ids=[5, 6, 7],
        num_prompt_tokens=2,
        num_computed_tokens=1,
        num_scheduled_tokens=2,
        block_ids=[8, 9],
        payload=WorkerPayload(params, 4, RequestContext.from_headers(HEADERS)),
    )
    plan = SchedulerOutput(
        step_id=3,
        new_requests=[new],
        cached_requests=CachedRequestData([2, 3], [10, 11], [12, 13], [1, 2], [14, 15, 16]),
        removed_keys=[17],
        total_num_scheduled_tokens=23,
        grammar_masks=GrammarMasks([2], b"mask", 1),
        swaps=Swaps(out=[(18, 19), (20, 21)], back=[(22, 23)]),
    )

    written = encode_plan(plan).step

    expected = worker_pb2.SchedulerOutput(
        step_id=3,
        new_requests=[
            worker_pb2.NewRequestData(
                handle=1,
                token_ids=pack_u32([5, 6, 7]),
                num_prompt_tokens=2,
                num_computed_tokens=1,
                num_scheduled_tokens=2,
                block_ids=[pack_u32([8, 9])],
                sampling_params=params,
                request_id="r",
                eos_token_id=4,
                trace_headers=HEADERS,
            )
        ],
        cached_requests=worker_pb2.CachedRequestData(
            handles=pack_u32([2, 3]),
            num_scheduled_tokens=pack_u32([10, 11]),
            num_computed_tokens=pack_u32([12, 13]),
            new_blocks=[worker_pb2.BlockIdColumns(num_blocks=pack_u32([1, 2]), block_ids=pack_u32([14, 15, 16]))],
        ),
        removed_handles=pack_u32([17]),
        total_num_scheduled_tokens=23,
        grammar_bitmask=worker_pb2.GrammarBitmask(handles=pack_u32([2]), bitmask=b"mask", num_words=1),
        swap_out=worker_pb2.BlockCopies(source_block_ids=pack_u32([18, 20]), target_block_ids=pack_u32([19, 21])),
        swap_in=worker_pb2.BlockCopies(source_block_ids=pack_u32([22]), target_block_ids=pack_u32([23])),
    )
    assert written == expected


def test_a_plan_writes_nothing_of_what_it_does_not_have():
    assert encode_plan(SchedulerOutput(step_id=3)).step == worker_pb2.SchedulerOutput(step_id=3)


def columns(token_ids, width=1):
    """Return the same log-probabilities as a message and as a value."""
    ids, values, ranks = pack_u32(token_ids), pack_f32([-float(i) for i in token_ids]), pack_u32(token_ids[::width])
    fields = {"token_ids": ids, "logprobs": values, "ranks": ranks, "num_positions": len(token_ids) // width, "width": width}
    return types_pb2.LogprobsColumns(**fields), Logprobs(**fields)


def test_a_result_is_read_whole():
    sampled, rows = columns([3, 4])
    prompts, prompt_rows = columns([5, 6, 7, 8], width=2)
    error = InvalidRequest("no", field="f")
    message = worker_pb2.ModelRunnerOutput(
        step_id=3,
        handles=pack_u32([1]),
        num_tokens=pack_u32([2]),
        token_ids=pack_u32([3, 4]),
        logprobs_by_width=[worker_pb2.SampleLogprobs(handles=pack_u32([1, 1]), columns=sampled)],
        prompt_logprobs=[worker_pb2.PromptLogprobs(handle=2, columns=prompts)],
        failures=[worker_pb2.RequestFailure(handle=4, status=to_status(error))],
        compute_seconds=0.5,
    )

    read = decode_result(message)

    assert (read.step_id, read.keys, [list(row) for row in read.token_ids], read.compute_s) == (3, [1], [[3, 4]], 0.5)
    assert (read.logprobs, read.prompt_logprobs) == ({1: rows}, {2: prompt_rows})
    assert {key: (failure.message, failure.field) for key, failure in read.failures.items()} == {4: ("no", "f")}


def test_a_result_of_one_token_each_needs_no_counts():
    message = worker_pb2.ModelRunnerOutput(step_id=1, handles=pack_u32([1, 2]), token_ids=pack_u32([3, 4]))

    assert decode_result(message) == ModelRunnerOutput(1, [1, 2], [(3,), (4,)])


# --- outputs ----------------------------------------------------------------------------------------------------------


def a_request(**fields):
    given = {"key": 1, "request_id": "r", "token_ids": [1], "num_prompt_tokens": 1, "max_total_tokens": 9, "handle": 7}
    return Request(**given | fields)


def test_tokens_alone_are_columns_and_stats_go_along():
    outputs = [EngineCoreOutput(a_request(handle=handle), tokens) for handle, tokens in ((7, [3, 4]), (8, [5]))]
    stats = SchedulerStats(1, 2, 0.5, 3, 4, 5, 6)

    written = encode_message(StepOutputs(3, outputs, stats, timestamp=1.5), engine_index=2)[0].outputs

    assert written == engine_core_pb2.EngineCoreOutputs(
        step_id=3,
        engine_index=2,
        timestamp_monotonic_s=1.5,
        decode=engine_core_pb2.DecodeBatch(
            handles=pack_u32([7, 8]), num_tokens=pack_u32([2, 1]), token_ids=pack_u32([3, 4, 5])
        ),
        scheduler_stats=engine_core_pb2.SchedulerStats(
            num_running_reqs=1,
            num_waiting_reqs=2,
            kv_cache_usage=0.5,
            prefix_cache_queries=3,
            prefix_cache_hits=4,
            num_preemptions=5,
            step_counter=6,
        ),
    )


def test_an_output_with_more_than_tokens_is_written_whole():
    message, rows = columns([3, 4], width=2)
    prompt_message, prompt_rows = columns([5, 6])
    error = InvalidRequest("no", field="f")
    output = EngineCoreOutput(
        a_request(queued_at=0.25, scheduled_at=0.75, num_preemptions=2),
        [3],
        FinishReason.ERROR,
        stop_reason="end",
        logprobs=rows,
        prompt_logprobs=prompt_rows,
        prefill_stats=PrefillStats(num_prompt_tokens=10, num_cached_tokens=4),
        error=error,
    )

    written = encode_message(StepOutputs(3, [output], timestamp=1.5))[0].outputs

    event = engine_core_pb2.EngineCoreEvent
    expected = engine_core_pb2.EngineCoreOutput(
        handle=7,
        request_id="r",
        new_token_ids=pack_u32([3]),
        finish_reason=4,
        stop_reason=types_pb2.StopReason(text="end"),
        new_logprobs=message,
        new_prompt_logprobs=prompt_message,
        status=to_status(error),
        prefill_stats=engine_core_pb2.PrefillStats(
            num_prompt_tokens=10, num_cached_tokens=4, num_local_cached_tokens=4, num_computed_tokens=6
        ),
        events=[
            event(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_QUEUED, timestamp_monotonic_s=0.25),
            event(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_SCHEDULED, timestamp_monotonic_s=0.75),
            event(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_PREEMPTED, timestamp_monotonic_s=1.5),
            event(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_PREEMPTED, timestamp_monotonic_s=1.5),
        ],
    )
    assert written == engine_core_pb2.EngineCoreOutputs(step_id=3, timestamp_monotonic_s=1.5, outputs=[expected])


def test_an_output_writes_nothing_of_what_it_does_not_have():
    """The preemptions of a request are told when it ends."""
    going_on = EngineCoreOutput(a_request(num_preemptions=1), [3], logprobs=columns([3])[1])
    ended = EngineCoreOutput(a_request(), [3], FinishReason.STOP, stop_reason=3)

    written = encode_message(StepOutputs(3, [going_on, ended], timestamp=1.5))[0].outputs

    fields = {"handle": 7, "request_id": "r", "new_token_ids": pack_u32([3])}
    assert not written.HasField("decode")
    assert not written.HasField("scheduler_stats")
    assert list(written.outputs) == [
        engine_core_pb2.EngineCoreOutput(**fields, new_logprobs=columns([3])[0]),
        engine_core_pb2.EngineCoreOutput(**fields, finish_reason=1, stop_reason=types_pb2.StopReason(token_id=3)),
    ]


def test_rejections_and_notices_are_messages_of_their_own():
    error = InvalidRequest("no", field="f")

    rejected, notice = (encode_message(each)[0] for each in (Rejection("r", error), Notice("WORKER_LOST", "It was lost.")))

    assert rejected.rejected == engine_core_pb2.RequestRejected(request_id="r", status=to_status(error))
    expected = engine_core_pb2.EngineNotice(kind=engine_core_pb2.ENGINE_NOTICE_KIND_WORKER_LOST, text="It was lost.")
    assert notice.notice == expected
