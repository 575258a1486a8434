"""Decoding of messages, where more than copying is done."""

import pytest

from tetrad.engine_core_svc.engine.submission_wire import decode_submission
from tetrad.engine_core_svc.worker.wire import decode_result
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_f32, pack_u32, unpack_f32, unpack_u32
from tetrad.v1 import engine_core_pb2, types_pb2, worker_pb2


def columns(width, token_ids, ranks):
    return types_pb2.LogprobsColumns(
        token_ids=pack_u32(token_ids),
        logprobs=pack_f32([-float(i) for i in token_ids]),
        ranks=pack_u32(ranks),
        num_positions=len(ranks),
        width=width,
    )


def test_each_request_gets_logprobs_as_wide_as_it_asked_for():
    """Requests 7 and 9 want one more candidate, request 8 none, request 6 nothing at all."""
    message = worker_pb2.ModelRunnerOutput(handles=pack_u32([6, 7, 8, 9]), token_ids=pack_u32([1, 2, 3, 4]))
    message.logprobs_by_width.add(handles=pack_u32([7, 9]), columns=columns(2, [2, 20, 4, 40], [1, 5]))
    message.logprobs_by_width.add(handles=pack_u32([8]), columns=columns(1, [3], [2]))

    rows = decode_result(message).logprobs

    assert {key: each.width for key, each in rows.items()} == {7: 2, 8: 1, 9: 2}
    assert [unpack_u32(rows[key].token_ids) for key in (7, 8, 9)] == [[2, 20], [3], [4, 40]]
    assert [unpack_u32(rows[key].ranks) for key in (7, 8, 9)] == [[1], [2], [5]]
    assert unpack_f32(rows[9].logprobs) == [-4.0, -40.0]


def test_positions_of_one_request_stand_together():
    message = worker_pb2.ModelRunnerOutput(handles=pack_u32([7, 8]), num_tokens=pack_u32([2, 1]), token_ids=pack_u32([1, 2, 3]))
    message.logprobs_by_width.add(handles=pack_u32([7, 7, 8]), columns=columns(1, [1, 2, 3], [1, 2, 3]))

    rows = decode_result(message).logprobs

    assert (rows[7].num_positions, unpack_u32(rows[7].token_ids), unpack_u32(rows[7].ranks)) == (2, [1, 2], [1, 2])
    assert (rows[8].num_positions, unpack_u32(rows[8].token_ids)) == (1, [3])


@pytest.mark.parametrize(
    "message",
    [
        worker_pb2.ModelRunnerOutput(handles=pack_u32([7]), num_tokens=pack_u32([1, 1]), token_ids=pack_u32([1, 2])),
        worker_pb2.ModelRunnerOutput(
            logprobs_by_width=[worker_pb2.SampleLogprobs(handles=pack_u32([7, 8]), columns=columns(2, [2, 20], [1]))]
        ),
    ],
    ids=["more rows than requests", "fewer log-probabilities than requests"],
)
def test_columns_that_disagree_cannot_be_read(message):
    with pytest.raises(InvalidRequest, match="Columns disagree"):
        decode_result(message)


@pytest.mark.parametrize(
    ("params", "skips"),
    [
        ({}, False),
        ({"skip_reading_prefix_cache": True}, True),
        ({"prompt_logprobs": 0}, True),
        ({"prompt_logprobs": 0, "skip_reading_prefix_cache": False}, True),
    ],
)
def test_scored_prompts_are_computed_whole(params, skips):
    """What came out of the cache would have no log-probabilities, and the rest would be taken for the beginning."""
    message = engine_core_pb2.EngineCoreRequest(sampling_params=types_pb2.SamplingParams(**params))

    assert decode_submission(message).skip_reading_prefix_cache is skips
