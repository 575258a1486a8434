"""Values for custom logits processors over every API: they reach the engine core, or are refused by their name."""

import json

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct, Value

from tetrad import SamplingParams
from tetrad.services.errors import InvalidRequest, UnsupportedArgument
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2

VALUES = {"target": 7, "words": ["a", 0.5], "deep": {"flag": True, "none": None}}
POSTS = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
}
WITH_N = ("/v1/completions", "/v1/chat/completions")


@pytest.fixture
async def frontend(serve_frontend, engine):
    engine.logits_processors = ("my_module:Mine",)
    async with serve_frontend(listen="127.0.0.1:0") as running:
        yield running


@pytest.fixture
async def frontend_without(serve_frontend):
    async with serve_frontend(listen="127.0.0.1:0") as running:
        yield running


def values_of(request):
    return json_format.MessageToDict(request.sampling_params.extra_args)


@pytest.mark.parametrize(("path", "n"), [*((path, 1) for path in POSTS), *((path, 2) for path in WITH_N)])
async def test_vllm_xargs_reach_the_engine_core(path, n, frontend, engine):
    answer = await frontend.http.post(path, json=POSTS[path] | {"vllm_xargs": VALUES, "n": n})

    assert answer.status_code == 200, answer.text
    assert [values_of(request) for request in engine.requests] == [VALUES] * n


async def test_extra_args_of_token_requests_reach_the_engine_core(frontend, engine):
    body = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 2, "extra_args": VALUES}}

    answer = await frontend.http.post("/inference/v1/generate", json=body)

    assert answer.status_code == 200, answer.text
    assert [values_of(request) for request in engine.requests] == [VALUES]


async def test_extra_args_of_grpc_requests_reach_the_engine_core(frontend, engine):
    given = Struct()
    given.update(VALUES)
    params = types_pb2.SamplingParams(max_tokens=2, extra_args=given)

    async with open_channel(frontend.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        [answer async for answer in stub.Generate(inference_pb2.GenerateRequest(text="hi", sampling_params=params))]

    assert [values_of(request) for request in engine.requests] == [VALUES]


@pytest.mark.parametrize("path", POSTS)
async def test_without_processors_they_are_refused_by_name(path, frontend_without, engine):
    answer = await frontend_without.http.post(path, json=POSTS[path] | {"vllm_xargs": VALUES})
    empty = await frontend_without.http.post(path, json=POSTS[path] | {"vllm_xargs": {}})

    assert (answer.status_code, empty.status_code) == (400, 200)
    error = answer.json()["error"]
    assert error["message"].startswith("vllm_xargs={")
    assert error["message"].endswith(" is not supported: the server has no custom logits processors.")
    assert error.get("param", "vllm_xargs") == "vllm_xargs"
    assert len(engine.requests) == 1


async def test_values_that_json_has_no_form_for_are_refused(frontend, engine):
    body = json.dumps(POSTS["/v1/completions"] | {"vllm_xargs": {"a": 2**64}})

    answer = await frontend.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})

    assert answer.status_code == 400
    assert "vllm_xargs must contain only integers that fit 64 bits" in answer.text
    assert engine.requests == []


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", POSTS["/v1/completions"] | {"vllm_xargs": VALUES}, "vllm_xargs"),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"extra_args": VALUES}}, "extra_args"),
    ],
)
async def test_the_refusal_of_a_processor_names_the_field_that_the_client_has_set(path, body, name, frontend, engine):
    engine.reject = lambda _: InvalidRequest("Logits processor Mine refuses the request.", field="extra_args")

    answer = await frontend.http.post(path, json=body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


async def test_a_rendered_request_has_them_by_the_name_of_sampling_params(frontend):
    answer = await frontend.http.post("/v1/completions/render", json=POSTS["/v1/completions"] | {"vllm_xargs": VALUES})

    assert answer.json()[0]["sampling_params"]["extra_args"] == VALUES


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
async def test_grpc_requests_with_values_that_json_has_no_form_for_are_refused(frontend, number):
    given = Struct(fields={"deep": Value(list_value={"values": [{"number_value": number}]})})
    params = types_pb2.SamplingParams(max_tokens=2, extra_args=given)

    async with open_channel(frontend.grpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=f"extra_args must contain only finite numbers, got {number}") as refused:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            [answer async for answer in stub.Generate(inference_pb2.GenerateRequest(text="hi", sampling_params=params))]

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_grpc_requests_are_refused_without_processors(frontend_without):
    given = Struct()
    given.update(VALUES)
    params = types_pb2.SamplingParams(max_tokens=2, extra_args=given)

    async with open_channel(frontend_without.grpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="no custom logits processors") as refused:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            [answer async for answer in stub.Generate(inference_pb2.GenerateRequest(text="hi", sampling_params=params))]

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_library_refuses_them_without_processors(llm, engine):
    with pytest.raises(UnsupportedArgument, match=r"extra_args=\{'target': 7\}"):
        await llm.add_request("r", "hi", SamplingParams(extra_args={"target": 7}))

    assert engine.requests == []
