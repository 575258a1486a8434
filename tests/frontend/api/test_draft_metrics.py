"""Counts of the drafts of single requests in answers over HTTP and gRPC."""

import json

import pytest

from tests.frontend.asking import run
from tetrad.frontend.request.spec_decode_metrics import RequestSpecDecodeMetrics, summed
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import engine_core_pb2, inference_pb2, inference_pb2_grpc, types_pb2

MESSAGE = engine_core_pb2.SpecDecodeMetrics(
    num_draft_tokens=8, num_accepted_tokens=5, histogram=[1, 1, 2], per_step_accepted=[0, 2, 1, 2], per_step_drafted=[2] * 4
)
SHOWN = {
    "mean_acceptance_length": 2.25,
    "draft_acceptance_rate": 0.625,
    "acceptance_histogram": [1, 1, 2],
    "num_spec_steps": 4,
    "num_accepted_draft_tokens": 5,
    "num_draft_tokens": 8,
    "num_spec_tokens": 2,
    "per_step_accepted": [0, 2, 1, 2],
    "per_step_drafted": [2, 2, 2, 2],
}
BODIES = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/inference/v1/generate": {"token_ids": [104], "sampling_params": {"max_tokens": 3}},
}


@pytest.fixture
def measuring(engine):
    engine.draft_metrics = MESSAGE
    return engine


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.usefixtures("measuring")
async def test_a_whole_answer_has_the_counts(http, path):
    answer = (await http.post(path, json=BODIES[path])).json()

    assert answer["metrics"] == {"speculative_decoding": SHOWN}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.usefixtures("measuring")
async def test_a_stream_has_them_with_its_usage(http, path):
    body = BODIES[path] | {"stream": True, "stream_options": {"include_usage": True}}

    answer = await http.post(path, json=body)

    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [chunk.get("metrics") for chunk in chunks] == [None] * (len(chunks) - 1) + [{"speculative_decoding": SHOWN}]


@pytest.mark.parametrize("path", BODIES)
async def test_other_answers_have_no_metrics(http, path):
    assert "metrics" not in (await http.post(path, json=BODIES[path])).json()


@pytest.mark.usefixtures("measuring")
async def test_programs_get_them_with_the_end_of_an_output(llm):
    outputs = [each.outputs[0] for each in await run(llm, max_tokens=3)]

    assert outputs[-1].spec_decode_metrics == RequestSpecDecodeMetrics(2, [1, 1, 2], 8, [0, 2, 1, 2], [2] * 4)
    assert outputs[-1].spec_decode_metrics.to_dict() == SHOWN


@pytest.mark.usefixtures("measuring")
async def test_a_stream_of_grpc_has_them_with_the_last_message_of_each_choice(frontend):
    request = inference_pb2.GenerateRequest(text="hi", sampling_params=types_pb2.SamplingParams(max_tokens=3), n=2)
    async with open_channel(frontend.grpc_address) as channel:
        stream = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        responses = [each async for each in stream]

    found = [each for each in responses if each.HasField("spec_decode_metrics")]
    assert sorted(each.index for each in found) == [0, 1]
    assert all(each.finish_reason for each in found)
    assert found[0].spec_decode_metrics.num_accepted_tokens == 5
    assert list(found[0].spec_decode_metrics.histogram) == [1, 1, 2]


def test_outputs_of_an_answer_are_added_up():
    first, second = RequestSpecDecodeMetrics(1, [3, 4], 7), RequestSpecDecodeMetrics(2, [1, 0, 2], 6, [0], [2])

    assert summed([first, second]) == RequestSpecDecodeMetrics(2, [4, 4, 2], 13, [0], [2])
    assert summed([]) is None
    assert RequestSpecDecodeMetrics(2, [0, 0, 0]).to_dict()["mean_acceptance_length"] == 1.0
