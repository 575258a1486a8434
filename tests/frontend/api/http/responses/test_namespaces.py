"""Namespaces of functions, and the web search that Codex sends beside them."""

import pytest

from tests.frontend.api.http.responses.client import client_of
from tests.frontend.api.http.responses.test_items import TOOL, conversation
from tests.frontend.turns import FORMATS, writes
from tetrad.services.errors import InvalidRequest

CLOSE = {"type": "function", "name": "close", "description": "Close it.", "parameters": {"type": "object"}}
AGENTS = {"type": "namespace", "name": "agents", "description": "Of agents.", "tools": [CLOSE]}
SEARCH = {"type": "web_search", "external_web_access": False}
CALL = '<tool_call>\n{"name": "agents__close", "arguments": {}}\n</tool_call>'


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS) as running:
        yield running


@pytest.fixture
async def client(frontend):
    async with client_of(frontend) as opened:
        yield opened


def test_the_model_sees_functions_of_a_namespace_under_joined_names():
    tools = conversation("hi", tools=[TOOL, AGENTS]).tools

    assert [tool.name for tool in tools] == [TOOL["name"], "agents__close"]
    assert tools[1].description == "Close it."


def test_a_call_of_a_namespace_has_the_name_that_the_model_wrote():
    call = {"type": "function_call", "call_id": "c", "namespace": "agents", "name": "close", "arguments": "{}"}
    items = [call, {"type": "function_call_output", "call_id": "c", "output": "ok"}]

    messages = conversation([{"role": "user", "content": "hi"}, *items]).messages

    assert messages[1]["tool_calls"][0]["function"]["name"] == messages[2]["name"] == "agents__close"


def test_an_output_without_a_call_is_a_message_of_the_user():
    """Codex sends one, with the name of a tool, after a call of its `create_goal`."""
    call = {"type": "function_call", "call_id": "c", "name": "close", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    unasked = {"type": "function_call_output", "namespace": "agent", "name": "goal", "output": "Be quick."}

    messages = conversation([{"role": "user", "content": "hi"}, call, output, unasked]).messages

    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[-1]["content"] == "Be quick."


def test_a_web_search_is_left_out_beside_functions():
    tools = conversation("hi", tools=[SEARCH, TOOL]).tools

    assert [tool.name for tool in tools] == [TOOL["name"]]


async def test_calls_name_the_namespace_in_the_answer_in_events_and_in_the_store(client, engine):
    writes(engine, CALL, "Closed.")
    fields = {"model": "fake", "input": "hi", "tools": [AGENTS, SEARCH]}

    whole = await client.responses.create(**fields)
    events = [event async for event in await client.responses.create(**fields, stream=True)]
    result = {"type": "function_call_output", "call_id": whole.output[0].call_id, "output": "ok"}
    answer = await client.responses.create(**fields | {"input": [result]}, previous_response_id=whole.id)

    calls = [whole.output[0], *(event.item for event in events if event.type.startswith("response.output_item"))]
    assert [(call.namespace, call.name) for call in calls] == [("agents", "close")] * 3
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert done.name == "close"
    assert [(tool.type, tool.name, tool.tools[0].name) for tool in whole.tools] == [("namespace", "agents", "close")]
    assert answer.output_text == "Closed."


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([SEARCH], "tools.0.type"),
        ([AGENTS | {"name": None}], "tools.0.name"),
        ([AGENTS | {"tools": []}], "tools.0.tools"),
        ([AGENTS | {"tools": [CLOSE, {"type": "mcp", "name": "x"}]}], "tools.0.tools.1.type"),
        ([AGENTS | {"tools": [CLOSE, {"type": "function"}]}], "tools.0.tools.1.name"),
        ([AGENTS, CLOSE | {"name": "agents__close"}], "tools.1.name"),
    ],
)
def test_a_namespace_that_cannot_be_is_named(tools, field):
    with pytest.raises(InvalidRequest) as raised:
        conversation("hi", tools=tools)

    assert raised.value.field == field
