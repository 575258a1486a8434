"""Calls that are forced, or allowed beside an answer in JSON: the constraint that the engine core receives."""

import json

import pytest

from tests.documents import Page
from tests.frontend.chat.asking import HERMES, NAMED, PARAMETERS, TOOLS, ask
from tests.frontend.turns import writes
from tetrad.frontend.chat.call_or_answer import call_or_answer
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.parsing.registry import TOOL_FORMATS
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams


async def ask_engine(frontend, engine, text, **body):
    """Return the request that the engine saw."""
    writes(engine, text)
    await ask(frontend, tools=TOOLS, **body)
    return engine.requests[-1].sampling_params


async def test_required_is_a_schema_of_the_calls(frontend, engine):
    params = await ask_engine(frontend, engine, "[]", tool_choice="required")

    schema = json.loads(params.structured_outputs.json_schema)
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    assert "maxItems" not in schema


async def test_required_without_parallel_calls_allows_one(frontend, engine):
    params = await ask_engine(frontend, engine, "[]", tool_choice="required", parallel_tool_calls=False)

    assert json.loads(params.structured_outputs.json_schema)["maxItems"] == 1


async def test_named_is_the_schema_of_its_arguments(frontend, engine):
    params = await ask_engine(frontend, engine, "{}", tool_choice=NAMED)

    # Closed: arguments that the tool does not declare are not made up.
    assert json.loads(params.structured_outputs.json_schema) == {**PARAMETERS, "additionalProperties": False}


async def test_a_response_format_is_one_of_text_and_no_constraint_of_forced_calls(frontend, engine):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["answer"]}}}
    params = await ask_engine(frontend, engine, "{}", tool_choice=NAMED, response_format=schema)

    assert json.loads(params.structured_outputs.json_schema) == {**PARAMETERS, "additionalProperties": False}


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": {"type": "string"}},
        {"allOf": [{}]},
        {"minProperties": 2},
        {"required": ["a", "b"]},
        {"required": [{}]},
    ],
)
async def test_schemas_that_speak_of_further_arguments_stay_open(frontend, engine, more):
    writes(engine, "{}")
    tool = {"type": "function", "function": {"name": "add", "parameters": {**PARAMETERS, **more}}}

    await ask(frontend, tools=[tool], tool_choice=NAMED)

    seen = json.loads(engine.requests[-1].sampling_params.structured_outputs.json_schema)
    assert seen == {**PARAMETERS, **more}


async def test_allowed_tools_hide_the_others(frontend, engine):
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    params = await ask_engine(frontend, engine, "[]", tool_choice=allowed)

    schema = params.structured_outputs.json_schema
    assert '"add"' in schema
    assert '"sub"' not in schema


async def test_the_constraint_waits_for_the_end_of_the_reasoning(serve_frontend, engine):
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        forced = await ask_engine(frontend, engine, "[]", tool_choice="required")
        own = await ask_engine(frontend, engine, "{}", response_format={"type": "json_object"})
        free = await ask_engine(frontend, engine, "yes")

    assert list(forced.structured_outputs.start_after_token_ids) == list(b"</think>")
    assert list(own.structured_outputs.start_after_token_ids) == list(b"</think>")
    assert list(forced.structured_outputs.opening_token_ids) == list(b"<think>")
    assert list(own.structured_outputs.opening_token_ids) == list(b"<think>")
    assert not free.HasField("structured_outputs")


async def test_reasoning_that_is_open_from_the_start_needs_no_opening(serve_frontend, engine):
    async with serve_frontend(reasoning_parser="deepseek_r1") as frontend:
        params = await ask_engine(frontend, engine, "[]", tool_choice="required")

    assert list(params.structured_outputs.start_after_token_ids) == list(b"</think>")
    assert not params.structured_outputs.opening_token_ids


async def test_the_constraint_holds_at_once_where_the_prompt_has_no_reasoning(serve_frontend, engine):
    async with serve_frontend(reasoning_parser="granite") as frontend:
        params = await ask_engine(frontend, engine, "[]", tool_choice="required")

    assert not params.structured_outputs.start_after_token_ids


async def test_strict_tools_are_held_while_the_model_is_free_to_call(serve_frontend, engine):
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    writes(engine, "yes")
    async with serve_frontend(tool_call_parser="hermes") as frontend:
        await ask(frontend, tools=strict)

    tag = engine.requests[-1].sampling_params.structured_outputs.structural_tag
    assert "<tool_call>" in tag
    assert '"integer"' in tag


@pytest.mark.parametrize("tool_call_parser", ["hermes", "granite"])
async def test_a_strict_tool_is_called_once_unless_calls_are_parallel(serve_frontend, engine, tool_call_parser):
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    writes(engine, "yes")
    async with serve_frontend(tool_call_parser=tool_call_parser) as frontend:
        await ask(frontend, tools=strict, parallel_tool_calls=False)

    form = json.loads(engine.requests[-1].sampling_params.structured_outputs.structural_tag)["format"]
    schemas = [tag["content"]["json_schema"] for tag in form["tags"]]
    assert form["stop_after_first"] is True
    assert all(schema["type"] == "object" or schema["maxItems"] == 1 for schema in schemas)


@pytest.mark.parametrize("strict", [True, False])
async def test_tools_may_be_called_besides_an_answer_in_json(serve_frontend, engine, strict):
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": strict}}]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "maxProperties": 0}}}
    writes(engine, HERMES)
    async with serve_frontend(tool_call_parser="hermes", reasoning_parser="qwen3") as frontend:
        whole = await ask(frontend, tools=tools, response_format=form)

    outputs = engine.requests[-1].sampling_params.structured_outputs
    answer, calls = json.loads(outputs.structural_tag)["format"]["elements"]
    assert answer["json_schema"] == form["json_schema"]["schema"]
    assert calls["tags"][0]["begin"].startswith("<tool_call>")
    assert calls["tags"][0]["content"]["json_schema"] == (PARAMETERS if strict else {"type": "object"})
    assert list(outputs.start_after_token_ids) == list(b"</think>")
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"


async def test_an_answer_in_json_is_all_there_can_be_where_calls_begin_like_json(serve_frontend, engine):
    writes(engine, "{}")
    async with serve_frontend(tool_call_parser="llama3_json") as frontend:
        await ask(frontend, tools=TOOLS, response_format={"type": "json_object"})

    assert engine.requests[-1].sampling_params.structured_outputs.json_object


def test_the_document_names_the_formats_that_allow_calls_beside_an_answer_in_json():
    answer, tools = StructuredOutputsParams(json_object=True), [Tool("f")]

    names = sorted(each.name for each in TOOL_FORMATS if call_or_answer(answer, tools, each, parallel=True) is not None)

    *others, last = [f"`{name}`" for name in names]
    assert f"in the formats {', '.join(others)} and {last} the turn calls" in Page.of("docs/requests.md").text
