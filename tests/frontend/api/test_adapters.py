"""Every API takes the name of an adapter as `model`: its requests carry the adapter, and answers say its name."""

import asyncio
import json

import grpc
import pytest

from tetrad.frontend.chat.conversation import Conversation
from tetrad.frontend.chat.turns import start_turn
from tetrad.frontend.llm.adapter_names import adapter_of
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import NotFound
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tetrad.vllm_api import inference_pb2 as vllm_pb2
from tetrad.vllm_api import inference_pb2_grpc as vllm_pb2_grpc

SQL = adapter_of("sql", "/adapters/sql")
MESSAGES = [{"role": "user", "content": "hi"}]
POSTS = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
}


@pytest.fixture
async def frontend_of_two(serve_frontend, engine):
    """A frontend with two adapters."""
    engine.supports_lora = True
    fields = {"lora_modules": ("sql=/adapters/sql", "poems=/adapters/poems"), "engine_admin_targets": ()}
    async with serve_frontend(listen="127.0.0.1:0", **fields) as running:
        yield running


def sent_to(engine) -> list[tuple[str, int, str]]:
    """Return name, number and path of the adapter of each request that the engine core got; of the base model, none."""
    return [(each.lora_request.name, each.lora_request.id, each.lora_request.path) for each in engine.requests]


WITH_SQL, WITHOUT = ("sql", SQL.lora_int_id, "/adapters/sql"), ("", 0, "")


@pytest.mark.parametrize("path", POSTS)
async def test_http_requests_carry_the_adapter_that_model_names(path, adapted, engine):
    answers = [await adapted.http.post(path, json=POSTS[path] | {"model": model}) for model in ("sql", "fake")]

    assert [answer.json()["model"] for answer in answers] == ["sql", "fake"]
    assert sent_to(engine) == [WITH_SQL, WITHOUT]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_streams_of_turns_say_the_adapters_name(path, adapted, engine):
    answer = await adapted.http.post(path, json=POSTS[path] | {"model": "sql", "stream": True})

    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: {")]
    first = events[0]["response"] if path == "/v1/responses" else events[0]["message"]
    assert first["model"] == "sql"
    assert sent_to(engine) == [WITH_SQL]


@pytest.mark.parametrize("path", POSTS)
async def test_a_name_that_is_no_adapter_is_not_found(path, adapted, engine):
    answer = await adapted.http.post(path, json=POSTS[path] | {"model": "poems"})

    assert answer.status_code == 404
    assert "`poems` does not exist" in answer.text
    assert engine.requests == []


async def test_an_adapter_that_is_unloaded_while_a_chat_is_rendered_is_not_replaced_by_the_base_model(
    connect, tokenizer, engine
):
    engine.supports_lora = True
    llm = await connect(lora_modules=("sql=/adapters/sql",), engine_admin_targets=())
    tokenizer.hung.clear()
    starting = asyncio.create_task(start_turn(llm, Conversation(MESSAGES), SamplingParams(max_tokens=3), "r", model="sql"))
    while not tokenizer.rendered:  # noqa: ASYNC110 - the fake tells nobody
        await asyncio.sleep(0.005)

    llm.model_names.adapters.remove("sql")
    tokenizer.hung.set()

    with pytest.raises(NotFound, match="`sql` does not exist"):
        await starting
    assert engine.requests == []


async def test_a_response_continues_one_of_an_adapter_with_the_model_that_it_names(adapted, engine):
    """The adapter belongs to a response, not to its conversation."""
    first = (await adapted.http.post("/v1/responses", json=POSTS["/v1/responses"] | {"model": "sql"})).json()
    following = {"input": "and", "max_output_tokens": 3, "model": "fake", "previous_response_id": first["id"]}

    assert (await adapted.http.post("/v1/responses", json=following)).status_code == 200

    assert sent_to(engine) == [WITH_SQL, WITHOUT]


async def test_grpc_calls_carry_the_adapter_that_model_names(channel, engine):
    stub, params = inference_pb2_grpc.InferenceServiceStub(channel), types_pb2.SamplingParams(max_tokens=3)
    for model in ("sql", "fake", ""):
        generate = inference_pb2.GenerateRequest(model=model, text="hi", sampling_params=params)
        chat = inference_pb2.ChatRequest(model=model, messages=[user_message("hi")], sampling_params=params)

        async for _ in stub.Generate(generate):
            pass
        async for _ in stub.Chat(chat):
            pass

    assert sent_to(engine) == [WITH_SQL] * 2 + [WITHOUT] * 4


async def test_calls_of_vllms_api_carry_the_adapter_that_model_or_lora_name_names(channel, engine):
    stub = vllm_pb2_grpc.InferenceStub(channel)
    for fields in ({"model": "sql"}, {"lora_name": "sql"}, {"model": "fake", "lora_name": "sql"}, {"model": "fake"}, {}):
        await stub.Generate(vllm_pb2.GenerateRequest(text="hi", **fields))

    assert sent_to(engine) == [WITH_SQL] * 3 + [WITHOUT] * 2


async def test_a_call_of_vllms_api_that_names_two_adapters_is_refused(frontend_of_two, engine):
    async with open_channel(frontend_of_two.grpc_address) as opened:
        with pytest.raises(grpc.aio.AioRpcError, match="give one of them"):
            await vllm_pb2_grpc.InferenceStub(opened).Generate(
                vllm_pb2.GenerateRequest(text="hi", model="sql", lora_name="poems")
            )

    assert engine.requests == []


async def test_grpc_lists_adapters_with_their_parent(channel):
    stub = inference_pb2_grpc.ModelServiceStub(channel)

    listed = (await stub.ListModels(inference_pb2.ListModelsRequest())).models
    one = (await stub.GetModel(inference_pb2.GetModelRequest(name="sql"))).model
    pages = [await stub.ListModels(inference_pb2.ListModelsRequest(page_size=1, page_token=token)) for token in ("", "1")]

    assert [(card.name, card.parent) for card in listed] == [("fake", ""), ("sql", "fake")]
    assert (one.root, one.parent) == ("/adapters/sql", "fake")
    assert [[card.name for card in page.models] for page in pages] == [["fake"], ["sql"]]
    assert [page.next_page_token for page in pages] == ["1", ""]


async def test_grpc_refuses_a_name_that_is_no_adapter(channel, engine):
    stub = inference_pb2_grpc.InferenceServiceStub(channel)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in stub.Generate(inference_pb2.GenerateRequest(model="poems", text="hi")):
            pass

    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    assert "`poems` does not exist" in refused.value.details()
    assert engine.requests == []


def user_message(text: str) -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(role="user", content=text)
