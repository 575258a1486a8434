"""Every field of the messages that the engine core reads and writes, one whole message each."""

import json

import pytest

from tetrad.engine_core_svc.api.wire import encode_info, encode_message
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.engine_core_svc.core.params_wire import PoolingMessage, SamplingMessage, sampling_of
from tetrad.engine_core_svc.core.payload import WorkerPayload
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
from tetrad.engine_core_svc.core.pooling import PoolingFacts
from tetrad.engine_core_svc.core.prompt_embeds import PromptEmbeds
from tetrad.engine_core_svc.core.request import RepetitionRule, Request, StopRules
from tetrad.engine_core_svc.engine.submission_wire import SharedSampling, decode_submission
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats
from tetrad.engine_core_svc.sessions.outbox import Notice, Rejection, StepOutputs
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language
from tetrad.engine_core_svc.worker.group import WorkerFacts
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout
from tetrad.engine_core_svc.worker.wire import decode_result, encode_plan
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.request_context import RequestContext
from tetrad.services.rpc.columns import pack_f32, pack_u32
from tetrad.services.rpc.status import to_status
from tetrad.services.version import CONTRACT_REVISION, SCHEMA_REVISION, VERSION
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
    assert sampling_of(read.payload.params) == params
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
        (
            {"sampling_params": types_pb2.SamplingParams(), "lora_request": types_pb2.LoraRequest(is_3d_lora_weight=True)},
            "is_3d_lora_weight",
        ),
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
    assert not sampling_of(read.payload.params).HasField("structured_outputs")
    assert sampling_of(read.payload.params).temperature == 0.5


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
        block_tables=[[8, 9], [0, 10]],
        payload=WorkerPayload(SamplingMessage(params), 4, RequestContext.from_headers(HEADERS)),
    )
    plan = SchedulerOutput(
        step_id=3,
        new_requests=[new],
        cached_requests=CachedRequestData([2, 3], [10, 11], [12, 13], [([14], [0]), ([15, 16], [24, 25])]),
        removed_keys=[17],
        draft_tokens={2: (26, 27), 3: (28,)},
        num_spec_tokens=4,
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
                block_ids=[pack_u32([8, 9]), pack_u32([0, 10])],
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
            new_blocks=[
                worker_pb2.BlockIdColumns(num_blocks=pack_u32([1, 2]), block_ids=pack_u32([14, 15, 16])),
                worker_pb2.BlockIdColumns(num_blocks=pack_u32([1, 2]), block_ids=pack_u32([0, 24, 25])),
            ],
        ),
        removed_handles=pack_u32([17]),
        draft_tokens=worker_pb2.DraftTokens(
            handles=pack_u32([2, 3]), num_tokens=pack_u32([2, 1]), token_ids=pack_u32([26, 27, 28])
        ),
        num_spec_tokens=4,
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
        draft_tokens=worker_pb2.DraftTokens(handles=pack_u32([1, 5]), num_tokens=pack_u32([0, 2]), token_ids=pack_u32([9, 10])),
        compute_seconds=0.5,
        draft_seconds=0.25,
    )

    read = decode_result(message)

    assert (read.step_id, read.keys, [list(row) for row in read.token_ids]) == (3, [1], [[3, 4]])
    assert (read.compute_s, read.draft_s) == (0.5, 0.25)
    assert (read.logprobs, read.prompt_logprobs) == ({1: rows}, {2: prompt_rows})
    assert read.draft_tokens == {1: [], 5: [9, 10]}
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
    stats = SchedulerStats(1, 2, 0.5, 3, 4, 5, 6, num_drafts=7, num_draft_tokens=8, num_accepted_tokens=9)

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
            num_drafts=7,
            num_draft_tokens=8,
            num_accepted_tokens=9,
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


def test_the_number_of_the_clients_call_is_read():
    params = types_pb2.SamplingParams()
    generating = engine_core_pb2.EngineCoreRequest(sampling_params=params, call_number=7)
    pooling = engine_core_pb2.EngineCoreRequest(pooling_params=types_pb2.PoolingParams(), call_number=8)

    assert [decode_submission(message).call_number for message in (generating, pooling)] == [7, 8]


def test_a_pooling_request_is_read_whole():
    params = types_pb2.PoolingParams(task="embed", dimensions=5)
    message = engine_core_pb2.EngineCoreRequest(
        request_id="r",
        handle=3,
        prompt_token_ids=pack_u32([1, 2]),
        pooling_params=params,
        priority=-6,
        arrival_time_unix_nanos=1_500_000_000,
        timeout_nanos=2_500_000_000,
        cache_salt="salt",
        trace_headers=HEADERS,
        resumed=True,
    )

    read = decode_submission(message)

    assert (read.request_id, read.handle, read.prompt_token_ids, read.output_token_ids) == ("r", 3, [1, 2], [])
    assert (read.priority, read.arrival_time, read.timeout_s, read.cache_salt) == (-6, 1.5, 2.5, "salt")
    assert (read.stop, read.constraint, read.resumed) == (StopRules(max_tokens=0), None, True)
    assert (read.pools, read.pools_tokens, read.skip_reading_prefix_cache) == (True, False, False)
    assert isinstance(read.payload.params, PoolingMessage)
    assert (read.payload.params.message, read.payload.context) == (params, RequestContext.from_headers(HEADERS))
    assert read.context == read.payload.context


@pytest.mark.parametrize(
    ("params", "read"),
    [
        ({"task": "token_embed"}, (True, True)),
        ({"task": "token_classify", "skip_reading_prefix_cache": False}, (True, True)),
        ({"task": "embed", "skip_reading_prefix_cache": True}, (False, True)),
        ({"task": "embed", "skip_reading_prefix_cache": False}, (False, False)),
    ],
)
def test_an_answer_for_all_tokens_needs_all_of_them_computed(params, read):
    submission = decode_submission(engine_core_pb2.EngineCoreRequest(pooling_params=types_pb2.PoolingParams(**params)))

    assert (submission.pools_tokens, submission.skip_reading_prefix_cache) == read


def test_a_pooling_request_with_embeddings_is_refused_by_the_field():
    message = engine_core_pb2.EngineCoreRequest(pooling_params=types_pb2.PoolingParams(), prompt_embeds=types_pb2.Tensor())

    with pytest.raises(Unsupported, match="prompt_embeds is not supported for pooling requests") as refused:
        decode_submission(message)
    assert refused.value.field == "prompt_embeds"


def test_the_adapter_of_a_pooling_request_is_read():
    lora = types_pb2.LoraRequest(name="a", id=7, path="/a")

    read = decode_submission(engine_core_pb2.EngineCoreRequest(pooling_params=types_pb2.PoolingParams(), lora_request=lora))

    assert read.lora == LoraRef("a", 7, "/a")


def test_the_adapter_the_seed_and_the_prediction_of_a_request_are_read():
    message = engine_core_pb2.EngineCoreRequest(
        sampling_params=types_pb2.SamplingParams(),
        lora_request=types_pb2.LoraRequest(name="a", id=7, path="/a", load_inplace=True, base_model_name="b"),
        seed=0,
        predicted_token_ids=pack_u32([4, 5]),
        timeout_nanos=500_000_000,
    )

    read = decode_submission(message)

    assert read.lora == LoraRef("a", 7, "/a", load_inplace=True, base_model_name="b")
    assert (read.payload.seed, list(read.predicted_token_ids), read.timeout_s) == (0, [4, 5], 0.5)
    assert (submitted().payload.seed, submitted().lora, submitted().timeout_s) == (None, None, None)


def embedded(shape, num_bytes, *, dtype=types_pb2.DATA_TYPE_FLOAT32, flags=b"\x01\x00\x00"):
    tensor = types_pb2.Tensor(dtype=dtype, shape=shape, inline=bytes(num_bytes))
    params, ids = types_pb2.SamplingParams(), pack_u32([1, 2, 3])
    return engine_core_pb2.EngineCoreRequest(
        sampling_params=params, prompt_token_ids=ids, prompt_embeds=tensor, prompt_is_token_ids=flags
    )  # fmt: skip


def test_embeddings_of_a_prompt_are_read():
    embeds = decode_submission(embedded([2, 5], 40)).payload.prompt_embeds

    assert embeds == PromptEmbeds(bytes(40), 5, b"\x01\x00\x00")
    assert decode_submission(embedded([3, 5], 60, flags=b"")).payload.prompt_embeds.is_token_ids == bytes(3)


@pytest.mark.parametrize(
    "message",
    [
        embedded([2, 5], 40, dtype=types_pb2.DATA_TYPE_BFLOAT16),
        embedded([2, 5, 1], 40),
        embedded([2, 5], 39),
        embedded([0, 5], 0),
        embedded([2, 0], 0),
        embedded([1, 5], 20),
        embedded([2, 5], 40, flags=b"\x01\x00\x00\x01"),
    ],
)
def test_embeddings_that_disagree_with_the_prompt_are_refused(message):
    with pytest.raises(InvalidRequest, match=r"prompt_embeds|prompt_is_token_ids"):
        decode_submission(message)


def test_parameters_beside_a_request_are_read_by_their_index():
    params = [types_pb2.SamplingParams(max_tokens=number) for number in (5, 6)]
    shared = SharedSampling(params)
    messages = [engine_core_pb2.EngineCoreRequest(sampling_params_index=index) for index in (1, 0, 1)]

    read = [decode_submission(message, shared) for message in messages]

    assert [each.stop.max_tokens for each in read] == [6, 5, 6]
    assert read[0].payload.params is read[2].payload.params
    with pytest.raises(InvalidRequest, match="sampling_params_index is 2, but the message has 2") as refused:
        decode_submission(engine_core_pb2.EngineCoreRequest(sampling_params_index=2), shared)
    assert refused.value.field == "sampling_params_index"
    with pytest.raises(InvalidRequest, match="the message has 0"):
        decode_submission(engine_core_pb2.EngineCoreRequest(sampling_params_index=0))


# --- plans with what few requests have --------------------------------------------------------------------------------


def planned(payload, **fields):
    given = {"num_prompt_tokens": 2, "num_computed_tokens": 0, "num_scheduled_tokens": 2, "block_tables": [[3]]}
    return NewRequestData(key=1, request_id="r", token_ids=[5, 6], payload=payload, **given | fields)


def written_requests(*requests, **options):
    return encode_plan(SchedulerOutput(step_id=3, new_requests=list(requests)), **options).step


def test_a_pooling_request_has_its_own_parameters_in_a_plan():
    params = types_pb2.PoolingParams(task="embed")

    [written] = written_requests(planned(WorkerPayload(PoolingMessage(params)), pools=True)).new_requests

    assert (written.pooling_params, written.HasField("sampling_params")) == (params, False)


def test_parameters_that_requests_share_are_in_a_plan_once():
    shared, own = (SamplingMessage(types_pb2.SamplingParams(top_k=number)) for number in (3, 4))
    requests = [planned(WorkerPayload(params, seed=seed)) for params, seed in ((shared, 1), (own, None), (shared, 2))]

    written = written_requests(*requests)

    assert list(written.shared_sampling_params) == [shared.message]
    assert [each.HasField("sampling_params") for each in written.new_requests] == [False, True, False]
    assert [each.sampling_params_index for each in written.new_requests if each.HasField("sampling_params_index")] == [0, 0]
    assert [each.seed for each in written.new_requests if each.HasField("seed")] == [1, 2]


def test_a_worker_that_reads_no_shared_parameters_gets_whole_ones_with_their_seeds():
    shared = SamplingMessage(types_pb2.SamplingParams(top_k=3))

    written = written_requests(*[planned(WorkerPayload(shared, seed=seed)) for seed in (1, 2)], shares_params=False)

    assert list(written.shared_sampling_params) == []
    assert [each.sampling_params for each in written.new_requests] == [
        types_pb2.SamplingParams(top_k=3, seed=seed) for seed in (1, 2)
    ]
    assert not any(each.HasField("seed") or each.HasField("sampling_params_index") for each in written.new_requests)


def test_the_adapter_and_the_embeddings_of_a_request_are_in_a_plan():
    payload = WorkerPayload(SamplingMessage(types_pb2.SamplingParams()), prompt_embeds=PromptEmbeds(bytes(12), 3, b"\x01\x00"))
    adapter = Adapter(LoraRef("a", 7, "/a"), key=99)

    [written] = written_requests(planned(payload, adapter=adapter)).new_requests

    assert written.lora_request == types_pb2.LoraRequest(name="a", id=99, path="/a")
    expected = types_pb2.Tensor(dtype=types_pb2.DATA_TYPE_FLOAT32, shape=[1, 3], inline=bytes(12))
    assert (written.prompt_embeds, written.prompt_is_token_ids) == (expected, b"\x01\x00")


# --- facts ------------------------------------------------------------------------------------------------------------


def test_the_facts_of_an_engine_core_are_written_whole():
    settings = EngineCoreSettings(
        listen="unix:/tmp/x", model="m", max_num_seqs=7, tensor_parallel_size=1, scheduling_policy="priority",
        max_message_bytes=1 << 23, enable_lora=True, max_loras=2, max_cpu_loras=3, max_lora_rank=32,
    )  # fmt: skip
    layout = KVCacheLayout(11, 16, 32, 64, cache_dtype="int8")
    pooling = PoolingFacts(
        ("embed",), 5, True, (2, 3), ("x", "y"), True, 2,
        needs_all_tokens=True, generates=True, chunked_processing=True, max_embed_len=9,
    )  # fmt: skip
    facts = WorkerFacts("cpu", "float32", 99, 64, weights_dtype="q8_0", pooling=pooling, takes_embeddings=True)

    written = encode_info(settings, 12, layout, facts)

    assert written == engine_core_pb2.EngineInfo(
        epoch=12, model="m", max_model_len=32, num_gpu_blocks=11, kv_cache_tokens=160, block_size=16, dtype="float32",
        weights_dtype="q8_0", kv_cache_dtype="int8", tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1,
        max_num_seqs=7, max_num_batched_tokens=64, version=VERSION, schema_revision=SCHEMA_REVISION,
        contract_revision=CONTRACT_REVISION, vocab_size=99, device="cpu", priority_scheduling=True,
        supports_shared_sampling_params=True,
        capabilities=[
            types_pb2.CAPABILITY_SHARED_SAMPLING_PARAMS, types_pb2.CAPABILITY_LORA, types_pb2.CAPABILITY_PROMPT_EMBEDS
        ],
        supports_lora=True,
        lora_limits=types_pb2.LoraLimits(max_loras=2, max_lora_rank=32, max_cpu_loras=3), max_message_bytes=1 << 23,
        pooling=types_pb2.PoolingInfo(
            tasks=["embed"], embedding_size=5, is_matryoshka=True, matryoshka_dimensions=[2, 3], labels=["x", "y"],
            is_causal=True, num_labels=2, needs_all_tokens=True, generates=True, chunked_processing=True,
            max_embed_len=9,
        ),
    )  # fmt: skip


def test_an_engine_core_without_options_has_few_facts():
    settings = EngineCoreSettings(listen="unix:/tmp/x", model="m")

    written = encode_info(settings, 1, KVCacheLayout(11, 16, 32, 64), WorkerFacts("cpu", "float32", 99, 64))

    assert list(written.capabilities) == [types_pb2.CAPABILITY_SHARED_SAMPLING_PARAMS]
    assert not (written.supports_lora or written.priority_scheduling or written.num_speculative_tokens)
    assert not (written.HasField("pooling") or written.HasField("lora_limits"))
