"""Pooling requests: planned like others, ended by one answer when their prompt is computed."""

import time

import pytest

from tetrad.engine_core_svc.api.wire import encode_message
from tetrad.engine_core_svc.core.message_sizes import MessageLimits, MessageSizes
from tetrad.engine_core_svc.core.payload import NO_PAYLOAD
from tetrad.engine_core_svc.core.plan import (
    EngineCoreOutput,
    FinishReason,
    ModelRunnerOutput,
    NewRequestData,
    PoolingOutput,
    SchedulerOutput,
)
from tetrad.engine_core_svc.core.request import Purpose, Request, RequestStatus
from tetrad.engine_core_svc.engine.admission import Admission, AdmissionLimits
from tetrad.engine_core_svc.engine.submission_wire import decode_submission
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.outbox import StepOutputs
from tetrad.engine_core_svc.worker.in_flight import InFlight
from tetrad.engine_core_svc.worker.wire import decode_result
from tetrad.services.errors import InvalidRequest, PromptTooLong
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import engine_core_pb2, types_pb2, worker_pb2

ANSWER = PoolingOutput("float32", (2,), bytes(8))
GROUPS = {"decoder": {}, "encoder": {"groups": ()}}


def request_of(key, num_tokens):
    tokens = [key * 1000 + place for place in range(num_tokens)]
    return Request(key, str(key), tokens, num_tokens, max_total_tokens=num_tokens, purpose=Purpose.POOLING, handle=key)


def scheduler_of(kind="decoder", *, budget=64, chunks=True):
    limits = SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=budget, enable_chunked_prefill=chunks)
    return Scheduler(limits, KVCacheManager(32, 4, **GROUPS[kind]))


def answer(scheduler, plan):
    """Give the result of a plan back."""
    keys = plan.sampling_keys
    answers = dict.fromkeys(keys, ANSWER)
    return scheduler.update(ModelRunnerOutput(plan.step_id, keys[:], [()] * len(keys), pooling_outputs=answers))


@pytest.mark.parametrize("kind", GROUPS)
def test_a_request_ends_with_the_answer_to_its_whole_prompt(kind):
    scheduler = scheduler_of(kind)
    scheduler.add_request(request := request_of(1, 10))

    plan = scheduler.schedule()
    assert scheduler.schedule() is None, "nothing is left to compute"
    [output] = answer(scheduler, plan)

    assert (output.pooling_output, output.finish_reason, output.new_token_ids) == (ANSWER, FinishReason.STOP, [])
    assert request.status is RequestStatus.FINISHED_STOPPED
    assert not scheduler.has_requests
    assert scheduler.kv_cache.pool.num_free == 31


def test_a_decoder_computes_a_prompt_in_chunks_and_answers_with_the_last():
    scheduler = scheduler_of(budget=4)
    scheduler.add_request(request_of(1, 10))

    outputs = [answer(scheduler, scheduler.schedule()) for _ in range(3)]

    assert [len(each) for each in outputs] == [0, 0, 1]


def test_an_encoder_computes_no_part_of_a_prompt():
    scheduler = scheduler_of("encoder", budget=12, chunks=False)
    for key in (1, 2):
        scheduler.add_request(request_of(key, 10))

    plans = [scheduler.schedule(), scheduler.schedule()]

    assert [[new.num_scheduled_tokens for new in plan.new_requests] for plan in plans] == [[10], [10]]
    assert plans[0].new_requests[0].block_tables == []


@pytest.mark.parametrize("kind", GROUPS)
def test_a_request_is_computed_again_after_a_lost_worker(kind):
    scheduler = scheduler_of(kind)
    scheduler.add_request(request_of(1, 10))
    scheduler.schedule()

    scheduler.forget_worker()
    [output] = answer(scheduler, scheduler.schedule())

    assert output.pooling_output == ANSWER


def test_the_answer_to_an_aborted_request_is_dropped():
    scheduler = scheduler_of()
    scheduler.add_request(request_of(1, 10))
    plan = scheduler.schedule()

    scheduler.finish_requests([1], RequestStatus.FINISHED_ABORTED)

    assert answer(scheduler, plan) == []


def plan_of(**requests):
    """Return a plan that completes requests, "pools" or "generates"."""
    new = [
        NewRequestData(int(key[1:]), key, [5], 1, 0, 1, [[1]], NO_PAYLOAD, pools=purpose == "pools")
        for key, purpose in requests.items()
    ]
    return SchedulerOutput(0, new_requests=new, sampling_keys=[each.key for each in new])


@pytest.mark.parametrize(
    ("purpose", "row", "answers", "problem"),
    [
        ("pools", (), {}, "it has no pooled answer"),
        ("pools", (7,), {1: ANSWER}, "it has 1 tokens, and its answer was to be pooled"),
        ("generates", (7,), {1: ANSWER}, "it has a pooled answer, and none was planned"),
    ],
)
def test_a_result_of_the_other_kind_fails_its_request_alone(purpose, row, answers, problem):
    in_flight = InFlight(vocab_size=100)
    in_flight.add(plan_of(r1=purpose, r2="pools"))
    output = ModelRunnerOutput(0, [1, 2], [row, ()], pooling_outputs={**answers, 2: ANSWER})

    in_flight.take(output)

    assert problem in output.failures[1].message
    assert (output.keys, output.pooling_outputs) == ([2], {2: ANSWER})


def submission_of(num_tokens, **params):
    message = engine_core_pb2.EngineCoreRequest(request_id="r", prompt_token_ids=pack_u32(range(num_tokens)), **params)
    return decode_submission(message)


POOLING = {"pooling_params": types_pb2.PoolingParams(task="embed")}
GENERATION = {"sampling_params": types_pb2.SamplingParams(max_tokens=1)}


def test_a_prompt_may_fill_the_context_and_no_more():
    admission = Admission(AdmissionLimits(max_model_len=16, vocab_size=100, pools=True, generates=False))

    assert admission.accept(submission_of(16, **POOLING), session_key=1).purpose is Purpose.POOLING
    with pytest.raises(PromptTooLong):
        admission.accept(submission_of(17, **POOLING), session_key=1)


@pytest.mark.parametrize(("pools", "params"), [(True, GENERATION), (False, POOLING)])
def test_a_request_for_the_other_purpose_is_refused(pools, params):
    admission = Admission(AdmissionLimits(max_model_len=16, vocab_size=100, pools=pools, generates=not pools))

    with pytest.raises(InvalidRequest, match=r"The model of this engine (pools and does not generate|generates and does not)"):
        admission.accept(submission_of(4, **params), session_key=1)


def test_an_answer_is_the_same_on_both_sides_of_the_engine_core():
    tensor = types_pb2.Tensor(dtype=types_pb2.DATA_TYPE_FLOAT32, shape=[2], inline=b"12345678")
    came = worker_pb2.ModelRunnerOutput(pooling_outputs=[worker_pb2.PoolingOutput(handle=1, output=tensor)])

    result = decode_result(came)
    output = EngineCoreOutput(request_of(1, 4), [], FinishReason.STOP, pooling_output=result.pooling_outputs[1])
    message, _ = encode_message(StepOutputs(0, [output]))

    assert result.pooling_outputs == {1: PoolingOutput("float32", (2,), b"12345678")}
    assert message.outputs.outputs[0].pooling_output == tensor


def test_a_wall_clock_deadline_becomes_the_time_that_is_left():
    in_ten_seconds = time.time_ns() + 10 * 10**9

    left_s = [submission_of(4, **GENERATION, deadline_unix_nanos=when).timeout_s for when in (in_ten_seconds, 1)]

    assert left_s == [pytest.approx(10, abs=5), 0.0]


def test_an_answer_that_fits_no_message_is_refused():
    limits = MessageLimits.of(1 << 20)
    admission = Admission(AdmissionLimits(4096, 1000, pools=True, generates=False, messages=limits, answer_row_bytes=4096))

    admission.accept(submission_of(192, pooling_params=types_pb2.PoolingParams(task="token_embed")), 1)
    admission.accept(submission_of(193, pooling_params=types_pb2.PoolingParams(task="embed")), 1)
    with pytest.raises(InvalidRequest, match=r"The answer for all tokens would take 790528 bytes .*; the limit is 786432"):
        admission.accept(submission_of(193, pooling_params=types_pb2.PoolingParams(task="token_embed")), 1)


@pytest.mark.parametrize("chunks", [True, False])
def test_answers_that_do_not_fit_one_message_come_from_several_steps(chunks):
    limits = SchedulerLimits(
        max_num_seqs=8, max_num_batched_tokens=64, enable_chunked_prefill=chunks, messages=MessageLimits.of(1 << 20)
    )
    scheduler = Scheduler(limits, KVCacheManager(32, 4, **GROUPS["decoder"]))
    for key in (1, 2, 3):
        request = request_of(key, 10)
        request.sizes = MessageSizes(answer_bytes=400_000)
        scheduler.add_request(request)

    ended = [[output.request.key for output in answer(scheduler, scheduler.schedule())] for _ in range(3)]

    assert ended == [[1], [2], [3]]


def test_a_model_whose_answers_need_all_tokens_does_not_read_the_prefix_cache():
    admission = Admission(AdmissionLimits(max_model_len=16, vocab_size=100, pools=True, needs_all_tokens=True))

    pooling = admission.accept(submission_of(4, pooling_params=types_pb2.PoolingParams(task="embed")), 1)
    generating = admission.accept(submission_of(4, **GENERATION), 1)

    assert (pooling.skip_reading_prefix_cache, generating.skip_reading_prefix_cache) == (True, False)
