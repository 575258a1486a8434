"""Plans written and results read: every field of the messages between the engine core and its workers."""

import pytest

from tests.engine_core_svc.wire_values import HEADERS, columns
from tetrad.engine_core_svc.core.adapter import Adapter, LoraRef
from tetrad.engine_core_svc.core.kv_transfer import TransferOrders
from tetrad.engine_core_svc.core.payload import WorkerPayload
from tetrad.engine_core_svc.core.plan import (
    CachedRequestData,
    GrammarMasks,
    ModelRunnerOutput,
    NewRequestData,
    PromptScores,
    SchedulerOutput,
    Swaps,
)
from tetrad.engine_core_svc.core.prompt_embeds import PromptEmbeds
from tetrad.engine_core_svc.core.wire import PoolingMessage, SamplingMessage
from tetrad.engine_core_svc.worker.wire import decode_result, encode_plan
from tetrad.services.errors import InvalidRequest
from tetrad.services.request_context import RequestContext
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.services.rpc.status import to_status
from tetrad.v1 import types_pb2, worker_pb2


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


def test_a_result_is_read_whole():
    sampled, rows = columns([3, 4])
    prompts, prompt_rows = columns([5, 6, 7, 8], width=2)
    scores = types_pb2.PromptScores(scores=bytes(24), num_rows=2, width=3)
    error = InvalidRequest("no", field="f")
    message = worker_pb2.ModelRunnerOutput(
        step_id=3,
        handles=pack_u32([1]),
        num_tokens=pack_u32([2]),
        token_ids=pack_u32([3, 4]),
        logprobs_by_width=[worker_pb2.SampleLogprobs(handles=pack_u32([1, 1]), columns=sampled)],
        prompt_logprobs=[worker_pb2.PromptLogprobs(handle=2, columns=prompts)],
        prompt_scores=[worker_pb2.RequestPromptScores(handle=2, scores=scores)],
        failures=[worker_pb2.RequestFailure(handle=4, status=to_status(error))],
        draft_tokens=worker_pb2.DraftTokens(handles=pack_u32([1, 5]), num_tokens=pack_u32([0, 2]), token_ids=pack_u32([9, 10])),
        compute_seconds=0.5,
        draft_seconds=0.25,
    )

    read = decode_result(message)

    assert (read.step_id, read.keys, [list(row) for row in read.token_ids]) == (3, [1], [[3, 4]])
    assert (read.compute_s, read.draft_s) == (0.5, 0.25)
    assert (read.logprobs, read.prompt_logprobs) == ({1: rows}, {2: prompt_rows})
    assert read.prompt_scores == {2: PromptScores(bytes(24), 2, 3)}
    assert read.draft_tokens == {1: [], 5: [9, 10]}
    assert {key: (failure.message, failure.field) for key, failure in read.failures.items()} == {4: ("no", "f")}


def test_a_result_of_one_token_each_needs_no_counts():
    message = worker_pb2.ModelRunnerOutput(step_id=1, handles=pack_u32([1, 2]), token_ids=pack_u32([3, 4]))

    assert decode_result(message) == ModelRunnerOutput(1, [1, 2], [(3,), (4,)])


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


@pytest.mark.parametrize(("cancels", "ids"), [(True, [7, 9]), (False, [])])
def test_transfers_are_given_up_by_workers_that_can_do_this(cancels, ids):
    plan = SchedulerOutput(step_id=3, transfers=TransferOrders(cancelled=[7, 9]))

    written = encode_plan(plan, cancels_transfers=cancels).step

    assert list(unpack_u32(written.kv_transfers.cancelled_transfer_ids)) == ids
