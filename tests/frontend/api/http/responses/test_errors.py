"""Refused and failed responses: errors with field and status, events of failure, clients that disconnect."""

import openai
import pytest

from tests.frontend.api.http.responses.client import client_of
from tetrad.services.errors import InternalError, InvalidRequest, Overloaded, Unavailable


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(drain_timeout_s=0.2) as running:
        yield running


@pytest.fixture
async def client(frontend):
    async with client_of(frontend) as opened:
        yield opened


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, 400, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input.0.content.0.image_url"),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, 400, "tools.0.type"),
        ({"input": "hi", "tool_choice": "required"}, 400, "tool_choice"),
        ({"input": "hi", "temperature": 3}, 400, "temperature"),
        ({"input": "hi", "top_p": 0}, 400, "top_p"),
        ({"input": "hi", "model": "other"}, 404, "model"),
        ({"input": "hi", "previous_response_id": "resp_x"}, 404, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, 404, "input.0.id"),
        ({"input": "hi", "previous_response": {"id": "resp_x", "output": []}}, 400, "previous_response"),
        ({"input": "hi", "previous_input_messages": [{"role": "user"}]}, 400, "previous_input_messages"),
        ({"input": "hi", "enable_response_messages": True}, 400, "enable_response_messages"),
        ({"input": "hi", "kv_transfer_params": {"do_remote_decode": True}}, 400, "kv_transfer_params"),
        ({"input": "x" * 600}, 400, "prompt"),
        (
            {"input": "hi", "structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}},
            400,
            "structured_outputs",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_name_their_field(http, body, status, param, stream):
    response = await http.post("/v1/responses", json=body | {"stream": stream})

    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), error


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_x"),
        ("GET", "/v1/responses/resp_x?stream=true"),
        ("DELETE", "/v1/responses/resp_x"),
        ("POST", "/v1/responses/resp_x/cancel"),
        ("GET", "/v1/responses/resp_x/input_items"),
    ],
)
async def test_unknown_responses_are_not_found(http, method, path):
    response = await http.request(method, path)

    assert (response.status_code, response.json()["error"]["code"]) == (404, "response_not_found")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (InvalidRequest("no such grammar"), openai.BadRequestError),
        (Overloaded("full"), openai.RateLimitError),
        (Unavailable("gone"), openai.InternalServerError),
        (InternalError("broken"), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_has_its_status(client, engine, error, raised, stream):
    engine.reject = lambda _: error

    with pytest.raises(raised):
        await client.responses.create(model="fake", input="hi", stream=stream)


async def test_an_error_in_mid_stream_is_an_event(client, frontend, engine):
    engine.pause()
    await engine.allow(3)
    stream = await client.responses.create(model="fake", input="hi", stream=True)
    seen = []

    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            frontend.shutdown.set()

    assert seen[-1].type == "response.failed"
    assert seen[-1].response.error.code == "server_error"
    assert [event.sequence_number for event in seen] == list(range(len(seen)))


async def test_a_client_that_leaves_aborts_its_request(client, engine):
    engine.pause()
    await engine.allow(2)
    stream = await client.responses.create(model="fake", input="hi", stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()

    await engine.allow(None)
    await engine.until(lambda: engine.aborted)
