"""Anthropic's API over a real port, by its official client: answers, streams, tools, errors in its shape, disconnects."""

import json

import anthropic
import pytest

from tests.frontend.fakes import TEXT
from tests.frontend.turns import FORMATS, TEXTS, WEATHER, writes
from tetrad.services.errors import InternalError, InvalidRequest, Overloaded, Unavailable
from tetrad.services.rpc.columns import unpack_u32

HI = [{"role": "user", "content": "hi"}]
FORM = {"type": "json_schema", "schema": WEATHER}
TOOLS = [
    {"name": "get_weather", "description": "Weather.", "input_schema": WEATHER},
    {"name": "get_time", "input_schema": {"type": "object"}},
]

TYPES = {
    "text": ["text"],
    "unicode": ["text"],
    "reasoning": ["thinking", "text"],
    "call": ["tool_use"],
    "calls": ["tool_use", "tool_use"],
    "text and call": ["text", "tool_use"],
    "all": ["thinking", "text", "tool_use", "tool_use"],
    "only reasoning": ["thinking"],
    "nothing": [],
}


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS, drain_timeout_s=0.2) as running:
        yield running


@pytest.fixture
async def client(frontend):
    url = f"http://127.0.0.1:{frontend.port}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as opened:
        yield opened


async def events(http, **body):
    """Return the events of a stream as (name, data)."""
    async with http.stream("POST", "/v1/messages", json={"messages": HI, "max_tokens": 99, "stream": True, **body}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    return list(zip(names, [json.loads(line.removeprefix("data: ")) for line in lines[1::2]], strict=True))


async def test_message_by_the_official_client(client):
    message = await client.messages.create(model="fake", messages=HI, max_tokens=9, system="be")

    assert (message.content[0].text, message.stop_reason, message.role) == (TEXT[:9], "max_tokens", "assistant")
    prompt_tokens = len("<system>be\n<user>hi\n<assistant>")
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == prompt_tokens
    assert (message.usage.cache_read_input_tokens, message.usage.output_tokens) == (prompt_tokens // 16 * 16, 9)
    assert message._request_id


def shown(message):
    """Return the blocks without what is made anew for each answer: ids of calls."""
    return [block.model_dump(exclude={"id", "parsed_output"}) for block in message.content]


@pytest.mark.parametrize("tokens_per_step", [1, 5, 200])
async def test_the_official_clients_stream_adds_up_to_the_whole_message(client, engine, tokens_per_step):
    for kind, text in TEXTS.items():
        writes(engine, text)
        request = {"model": "fake", "messages": HI, "max_tokens": 400, "tools": TOOLS}
        engine.tokens_per_step = 16
        whole = await client.messages.create(**request)

        engine.tokens_per_step = tokens_per_step
        async with client.messages.stream(**request) as stream:
            streamed = await stream.get_final_message()

        assert shown(streamed) == shown(whole), kind
        assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage), kind
        assert [block.type for block in whole.content] == TYPES[kind]
        assert whole.stop_reason == ("tool_use" if "tool_use" in TYPES[kind] else "end_turn")


async def test_thinking_text_and_calls_are_blocks(client, engine):
    writes(engine, TEXTS["all"])

    message = await client.messages.create(model="fake", messages=HI, max_tokens=400, tools=TOOLS)

    thinking, text, first, second = message.content
    assert (thinking.thinking, text.text.strip()) == ("I need the weather.", "Let me look.")
    assert (first.name, first.input, second.name, second.input) == ("get_weather", {"city": "Paris"}, "get_time", {})
    assert first.id != second.id
    assert message.usage.output_tokens_details.thinking_tokens > 0


async def test_a_tool_round_trip(client, engine):
    writes(engine, TEXTS["call"], "It rains.")
    asked = await client.messages.create(model="fake", messages=HI, max_tokens=400, tools=TOOLS)
    [call] = asked.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}

    answer = await client.messages.create(
        model="fake",
        messages=[*HI, {"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}],
        max_tokens=99,
        tools=TOOLS,
    )

    assert (call.name, call.input) == ("get_weather", {"city": "Zürich"})
    assert (answer.content[0].text, answer.stop_reason) == ("It rains.", "end_turn")


async def test_the_official_tool_runner_sends_the_whole_conversation(client, engine):
    """By default it lets the server hold the conversation: a server that ignored that would answer without the question."""

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """Weather of a city."""
        return f"rain in {city}"

    writes(engine, TEXTS["call"], "It rains.")

    final = await client.beta.messages.tool_runner(model="fake", messages=HI, max_tokens=400, tools=[get_weather]).until_done()

    assert final.content[0].text == "It rains."
    last = bytes(unpack_u32(engine.requests[-1].prompt_token_ids)).decode()
    assert last.index("<user>hi") < last.index("rain in Zürich")


async def test_threads_are_refused_in_the_words_that_clients_know(http):
    body = {"messages": HI, "max_tokens": 9, "thread": {"type": "continue", "previous_message_id": "msg_1"}}

    response = await http.post("/v1/messages", json=body)

    assert response.status_code == 400
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert response.json()["error"]["details"] == details


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mcp_servers", [{"type": "url", "name": "m", "url": "https://example.com/mcp"}]),
        ("container", {"skills": [{"type": "anthropic", "skill_id": "xlsx"}]}),
        ("watermarking", True),
    ],
)
async def test_what_runs_at_anthropic_or_nowhere_is_refused(http, field, value):
    response = await http.post("/v1/messages", json={"messages": HI, "max_tokens": 9, field: value})

    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{field} is not supported")


async def test_a_stop_sequence_is_named(client):
    message = await client.messages.create(model="fake", messages=HI, max_tokens=99, stop_sequences=["fox", "brown"])

    assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("The quick ", "stop_sequence", "brown")


async def test_count_tokens_counts_what_a_message_reads(client):
    count = await client.messages.count_tokens(model="fake", messages=HI, system="be")

    assert count.input_tokens == len("<system>be\n<user>hi\n<assistant>")


async def test_sampling_fields_reach_the_engine(client, engine):
    await client.messages.create(
        model="fake",
        messages=HI,
        max_tokens=3,
        metadata={"user_id": "me"},
        thinking={"type": "enabled", "budget_tokens": 2},
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 5, "priority": 3},
    )

    [request] = engine.requests
    params = request.sampling_params
    assert (params.max_tokens, params.top_k, params.seed, request.priority) == (3, 7, 5, 3)
    assert [round(value, 4) for value in (params.temperature, params.top_p, params.min_p)] == [0.5, 0.9, 0.1]
    assert params.thinking_token_budget == 2


async def test_thinking_is_without_effect_where_the_model_does_not_think(serve_frontend, engine):
    body = {"messages": HI, "max_tokens": 3, "thinking": {"type": "enabled", "budget_tokens": 2}}
    async with serve_frontend() as frontend:
        response = await frontend.http.post("/v1/messages", json=body)

    assert response.status_code == 200, response.text
    assert not engine.requests[0].sampling_params.HasField("thinking_token_budget")


@pytest.mark.parametrize(
    "fields", [{"output_config": {"format": FORM}}, {"output_format": FORM}, {"output_config": {}, "output_format": FORM}]
)
async def test_an_output_format_is_a_constraint(http, engine, fields):
    """Also with its name in the API's beta, which older clients send."""
    body = {"messages": HI, "max_tokens": 3, **fields}

    assert (await http.post("/v1/messages", json=body)).status_code == 200

    assert json.loads(engine.requests[0].sampling_params.structured_outputs.json_schema) == WEATHER


async def test_forced_calls(client, engine):
    writes(engine, '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]')

    message = await client.messages.create(model="fake", messages=HI, max_tokens=400, tools=TOOLS, tool_choice={"type": "any"})

    assert [(block.type, block.name, block.input) for block in message.content] == [
        ("tool_use", "get_weather", {"city": "Oslo"})
    ]
    assert message.stop_reason == "tool_use"
    assert engine.requests[0].sampling_params.HasField("structured_outputs")


async def test_an_output_format_is_no_constraint_of_forced_calls(http, engine):
    form = {"format": {"type": "json_schema", "schema": {"type": "object", "required": ["answer"]}}}
    choice = {"type": "tool", "name": "get_weather"}
    body = {"messages": HI, "max_tokens": 3, "tools": TOOLS, "tool_choice": choice, "output_config": form}

    assert (await http.post("/v1/messages", json=body)).status_code == 200

    schema = json.loads(engine.requests[0].sampling_params.structured_outputs.json_schema)
    assert schema["properties"] == WEATHER["properties"]


@pytest.mark.parametrize(
    ("body", "status", "kind", "text"),
    [
        ({"max_tokens": 3}, 400, "invalid_request_error", "messages"),
        ({"messages": HI}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": HI, "max_tokens": 3, "temperature": 3}, 400, "invalid_request_error", "temperature"),
        ({"messages": HI, "max_tokens": 3, "stop_sequences": [""]}, 400, "invalid_request_error", "stop"),
        ({"messages": HI, "max_tokens": 3, "model": "other"}, 404, "not_found_error", "other"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 3},
            400,
            "invalid_request_error",
            "source",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 600}], "max_tokens": 3},
            400,
            "invalid_request_error",
            "prompt is too long: 619 tokens > 512 maximum. This model's maximum context length is 512 tokens.",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 70_000}], "max_tokens": 3},
            400,
            "invalid_request_error",
            "prompt is too long. This model's maximum context length is 512 tokens.",
        ),
        ({"messages": HI, "max_tokens": 3, "request_id": "a b"}, 400, "invalid_request_error", "request_id"),
        ({"messages": HI, "max_tokens": 3.5}, 400, "invalid_request_error", "max_tokens"),
        (
            {"messages": HI, "max_tokens": 3, "tools": [{"type": "bash_20250124", "name": "bash"}]},
            400,
            "invalid_request_error",
            "tools of type 'bash_20250124' are not supported, only custom tools with an input_schema",
        ),
        ({"messages": HI, "max_tokens": 3, "seed": 2**70}, 400, "invalid_request_error", "seed"),
        ({"messages": HI, "max_tokens": 3, "priority": 2**40}, 400, "invalid_request_error", "priority"),
        (
            {"messages": HI, "max_tokens": 2**70, "thinking": {"type": "enabled", "budget_tokens": 2**60}},
            400,
            "invalid_request_error",
            "budget_tokens",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_anthropics_shape(http, body, status, kind, text, stream):
    response = await http.post("/v1/messages", json=body | {"stream": stream}, headers={"x-request-id": "req7"})

    error = response.json()
    assert (response.status_code, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert text in error["error"]["message"]
    assert error["request_id"] == response.headers["request-id"] == "req7"


@pytest.mark.parametrize(
    ("content", "content_type", "status", "kind"),
    [
        (b"{", "application/json", 400, "invalid_request_error"),
        (b"\xff", "application/json", 400, "invalid_request_error"),
        (b"{}", "text/plain", 415, "invalid_request_error"),
    ],
)
async def test_bodies_that_cannot_be_read(http, content, content_type, status, kind):
    response = await http.post("/v1/messages", content=content, headers={"content-type": content_type})

    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)


async def test_a_missing_key_is_told_in_the_same_shape(serve_frontend):
    async with serve_frontend(api_key=("secret",)) as frontend:
        refused = await frontend.http.post("/v1/messages", json={"messages": HI, "max_tokens": 1})
        taken = await frontend.http.post(
            "/v1/messages",
            json={"messages": HI, "max_tokens": 1},
            headers={"x-api-key": "secret", "anthropic-version": "2023-06-01"},
        )

    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert taken.status_code == 200


async def test_an_unknown_path_is_refused_in_anthropic_s_form(http):
    response = await http.get("/v1/messages/batches")

    error = {"type": "not_found_error", "message": "There is nothing at /v1/messages/batches."}
    request_id = response.headers["x-request-id"]
    assert (response.status_code, response.json()) == (404, {"type": "error", "error": error, "request_id": request_id})


async def test_a_method_that_is_not_taken(http):
    response = await http.get("/v1/messages")

    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "raised", "retry_after"),
    [
        (InvalidRequest("no such grammar"), anthropic.BadRequestError, None),
        (Overloaded("full", retry_after_s=7.0), anthropic.RateLimitError, "7"),
        (Unavailable("gone"), anthropic.InternalServerError, "1"),
        (InternalError("broken"), anthropic.InternalServerError, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_has_its_status(client, engine, error, raised, retry_after, stream):
    engine.reject = lambda _: error

    with pytest.raises(raised) as caught:
        await client.messages.create(model="fake", messages=HI, max_tokens=3, stream=stream)

    assert caught.value.response.headers.get("retry-after") == retry_after


async def test_an_error_in_mid_stream_is_an_event(client, frontend, engine):
    engine.pause()
    await engine.allow(3)
    stream = await client.messages.create(model="fake", messages=HI, max_tokens=99, stream=True)
    seen = []

    with pytest.raises(anthropic.APIStatusError, match="shutting down"):
        async for event in stream:
            seen.append(event.type)
            if event.type == "content_block_delta":
                frontend.shutdown.set()

    assert seen[0] == "message_start"
    assert "message_stop" not in seen


async def test_a_client_that_leaves_aborts_its_request(client, engine):
    engine.pause()
    await engine.allow(2)
    async with client.messages.stream(model="fake", messages=HI, max_tokens=99) as stream:
        async for event in stream:
            if event.type == "text":
                break

    await engine.allow(None)
    await engine.until(lambda: engine.aborted)


async def test_events_are_named_and_end_without_done(http):
    found = await events(http)

    assert all(name == data["type"] for name, data in found)
    assert found[-1][0] == "message_stop"
