"""Bad input is answered with its reason, and nobody else notices."""

import json
import time

import grpc
import httpx
import pytest

from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tetrad.v1.types_pb2 import SamplingParams as Params

MODEL = "smollm2-135m-instruct"
MAX_LEN = 8192


def post(server, fields: dict | None = None, *, content: bytes | None = None, content_type: str = "application/json"):
    content = (
        json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": 4} | (fields or {})).encode()
        if content is None
        else content
    )
    return httpx.post(f"{server.url}/v1/completions", content=content, headers={"content-type": content_type}, timeout=30)


@pytest.fixture(autouse=True)
def alive_afterwards(sim_server):
    yield
    assert post(sim_server).status_code == 200
    sim_server.wait_idle(5)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"temperature": -1}, 400, ["temperature", "-1"]),
        ({"temperature": 3}, 400, ["temperature", "[0, 2]", "3"]),
        ({"top_p": 0}, 400, ["top_p", "(0, 1]", "0"]),
        ({"max_tokens": 0}, 400, ["max_tokens", "at least 1", "0"]),
        ({"n": 0}, 400, ["n must be at least 1", "0"]),
        ({"prompt": ""}, 400, ["prompt", "empty"]),
        ({"prompt": []}, 400, ["prompt", "empty"]),
        ({"prompt": [5] * MAX_LEN}, 400, [str(MAX_LEN), "maximum"]),
        ({"prompt": [1, 49152]}, 400, ["49152", "ocabulary"]),
        ({"prompt": [-1]}, 400, ["-1"]),
        ({"model": "nope"}, 404, ["The model `nope` does not exist."]),
        ({"prompt": "lone \ud800 surrogate"}, 400, ["surrogate"]),
        ({"stop": ["a"] * 5}, 400, ["stop", "4"]),
    ],
    ids=lambda value: next(iter(value)) + "=" + str(next(iter(value.values())))[:20] if isinstance(value, dict) else None,
)
def test_a_bad_field_is_named_with_its_value_and_limit(sim_server, fields, status, words):
    response = post(sim_server, fields)

    error = response.json()["error"]
    assert response.status_code == status
    assert all(word in error["message"] for word in words), error
    assert set(error) == {"message", "type", "param", "code"}


def test_a_nul_is_a_character_like_any_other(sim_server):
    assert post(sim_server, {"prompt": "before\x00after"}).status_code == 200


def test_broken_json_is_a_bad_request(sim_server):
    response = post(sim_server, content=b'{"model": ')

    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


def test_another_content_type_is_refused(sim_server):
    response = post(sim_server, content=b"model=x", content_type="application/x-www-form-urlencoded")

    assert response.status_code in (400, 415)
    assert "application/json" in response.json()["error"]["message"]


def test_ten_megabytes_of_prompt_are_refused_quickly(sim_server):
    start = time.monotonic()
    response = post(sim_server, {"prompt": "word " * 2_000_000})

    assert 400 <= response.status_code < 500
    assert any(character.isdigit() for character in response.json()["error"]["message"])
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("request_fields", "code", "words"),
    [
        ({"text": "x", "sampling_params": Params(temperature=-1)}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"text": "x", "sampling_params": Params(max_tokens=0)}, grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
        ({"text": "x", "n": 0}, grpc.StatusCode.INVALID_ARGUMENT, "n must be at least 1"),
        ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT, "empty"),
        ({"token_ids": inference_pb2.TokenIdList(ids=[49152])}, grpc.StatusCode.INVALID_ARGUMENT, "49152"),
        ({"text": "x", "model": "nope"}, grpc.StatusCode.NOT_FOUND, "nope"),
    ],
)  # fmt: skip
def test_the_public_grpc_api_says_the_same(sim_server, request_fields, code, words):
    with grpc.insecure_channel(sim_server.grpc_target) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
            inference_pb2.GenerateRequest(**request_fields), timeout=30
        )
        with pytest.raises(grpc.RpcError) as caught:
            list(call)

    assert caught.value.code() is code
    assert words in caught.value.details()


def test_the_public_grpc_api_generates(sim_server):
    request = inference_pb2.GenerateRequest(text="Hello", sampling_params=Params(max_tokens=5, ignore_eos=True))
    with grpc.insecure_channel(sim_server.grpc_target) as channel:
        responses = list(inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, timeout=30))

    assert sum(len(response.token_ids) for response in responses) == 5
    assert responses[-1].finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert "".join(response.text for response in responses)
