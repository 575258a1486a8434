"""Scores of given ids at positions of a prompt, over HTTP and gRPC."""

import base64
import io

import numpy as np
import pytest

from tetrad.frontend.engine.wire import decode_scores
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2

PATH = "/inference/v1/generate"
EXPECTED = np.array([[-0.1, -0.2], [-0.3, -np.inf]], np.float32)


def body(**params):
    return {"token_ids": [104, 105, 106, 107], "sampling_params": {"max_tokens": 2} | params}


async def test_an_answer_has_the_scores_as_an_array(http, engine):
    answer = await http.post(PATH, json=body(prompt_logprob_token_ids=[[1, 2], [3]], prompt_logprob_start=1))

    found = np.load(io.BytesIO(base64.b64decode(answer.json()["prompt_token_id_logprobs"])))
    np.testing.assert_array_equal(found, EXPECTED)
    assert found.dtype == np.float32
    [sent] = [each.sampling_params.prompt_score_ids for each in engine.requests]
    assert sent == types_pb2.PromptScoreIds(token_ids=pack_u32([1, 2, 3, 2**32 - 1]), width=2, start=1)


async def test_ids_of_all_rows_are_sent_once(http, engine):
    answer = await http.post(PATH, json=body(prompt_logprob_token_ids=[1, 2], n=2))

    found = np.load(io.BytesIO(base64.b64decode(answer.json()["prompt_token_id_logprobs"])))
    assert found.shape == (3, 2)
    assert engine.requests[0].sampling_params.prompt_score_ids.token_ids == pack_u32([1, 2])


async def test_other_answers_do_not_have_the_field(http):
    answer = await http.post(PATH, json=body())

    assert "prompt_token_id_logprobs" not in answer.json()


async def test_an_engine_core_of_an_older_release_is_no_teacher(serve_frontend, engine):
    engine.capabilities = []
    async with serve_frontend(listen="127.0.0.1:0") as frontend:
        answer = await frontend.http.post(PATH, json=body(prompt_logprob_token_ids=[1]))

    assert answer.status_code == 400
    assert "prompt_logprob_token_ids is not supported: the engine core" in answer.json()["error"]["message"]


async def test_rows_that_do_not_fit_the_prompt_are_refused(http):
    answer = await http.post(PATH, json=body(prompt_logprob_token_ids=[[1], [2]]))

    assert answer.status_code == 400
    assert "has 2 rows, but 3 tokens of the prompt follow prompt_logprob_start=0" in answer.json()["error"]["message"]


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_of_grpc_has_them_once(frontend, n):
    ids = types_pb2.PromptScoreIds(token_ids=pack_u32([1, 2, 3, 2**32 - 1]), width=2, start=1)
    params = types_pb2.SamplingParams(max_tokens=4, prompt_score_ids=ids)
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIdList(ids=[104, 105, 106, 107]), sampling_params=params, n=n
    )
    async with open_channel(frontend.grpc_address) as channel:
        stream = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        responses = [each async for each in stream]

    [found] = [each.prompt_scores for each in responses if each.HasField("prompt_scores")]
    np.testing.assert_array_equal(decode_scores(found).to_array(), EXPECTED)


def test_scores_that_do_not_fit_their_shape_are_an_odd_output():
    with pytest.raises(ValueError, match="scores of 2 rows of 3 ids have 8 bytes"):
        decode_scores(types_pb2.PromptScores(scores=bytes(8), num_rows=2, width=3))
