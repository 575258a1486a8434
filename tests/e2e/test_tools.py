"""Tools by the official client and over gRPC on the real model: calls that satisfy their schema, their results, streams."""

import json
import re
from collections.abc import Iterator

import grpc
import jsonschema
import openai
import pytest

from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2

MODEL = "smollm2-135m-instruct"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK = {
    "type": "object",
    "properties": {"zone": {"enum": ["CET", "UTC"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time", "description": "The time now.", "parameters": CLOCK}},
]
SCHEMAS = {"get_weather": WEATHER, "get_time": CLOCK}
QUESTION = [{"role": "user", "content": "What will the weather be in Paris over the next 3 days?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def ask(client, messages=QUESTION, **options):
    options = {"tools": TOOLS, "temperature": 0, "max_tokens": 150, **options}
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


def check(calls):
    assert calls
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize("tool_choice", ["required", NAMED])
def test_a_round_trip(client, tool_choice):
    choice = ask(client, tool_choice=tool_choice, parallel_tool_calls=False).choices[0]

    assert choice.finish_reason == ("stop" if tool_choice == NAMED else "tool_calls")  # as OpenAI's API and vLLM
    assert choice.message.content is None
    check(choice.message.tool_calls)
    assert len(choice.message.tool_calls) == 1
    if tool_choice == NAMED:
        assert choice.message.tool_calls[0].function.name == "get_weather"

    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "Sunny, 21 degrees."}
    answer = ask(client, [*QUESTION, choice.message.model_dump(), result], tool_choice="none", max_tokens=20).choices[0]

    assert answer.message.content
    assert answer.message.tool_calls is None


@pytest.mark.parametrize("tool_choice", ["required", NAMED])
def test_the_calls_of_a_stream_are_those_of_the_whole(client, tool_choice):
    options = {"tool_choice": tool_choice, "parallel_tool_calls": False}
    whole = ask(client, **options).choices[0]

    calls, reasons = {}, []
    for chunk in ask(client, stream=True, **options):
        for choice in chunk.choices:
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for delta in choice.delta.tool_calls or ():
                call = calls.setdefault(delta.index, [delta.function.name, ""])
                call[1] += delta.function.arguments or ""

    assert list(calls.values()) == [[each.function.name, each.function.arguments] for each in whole.message.tool_calls]
    assert reasons == [whole.finish_reason]


def test_hot_samples_satisfy_the_schema_too(client):
    answer = ask(client, tool_choice="required", parallel_tool_calls=False, n=4, seed=1, temperature=1.5)

    for choice in answer.choices:
        check(choice.message.tool_calls)


def test_a_strict_tool_may_be_called_or_not(client):
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]

    message = ask(client, tools=strict, max_tokens=60).choices[0].message

    assert message.content or message.tool_calls
    for call in message.tool_calls or ():
        jsonschema.validate(json.loads(call.function.arguments), WEATHER)


def test_an_answer_in_json_or_a_call(client):
    schema = {
        "type": "object",
        "properties": {"sunny": {"type": "boolean"}},
        "required": ["sunny"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]

    options = {"response_format": form, "parallel_tool_calls": False, "n": 4, "temperature": 1.2, "seed": 3}
    choices = ask(client, tools=strict, **options).choices

    assert {choice.finish_reason for choice in choices} == {"stop", "tool_calls"}
    for choice in choices:
        for call in choice.message.tool_calls or ():
            jsonschema.validate(json.loads(call.function.arguments), WEATHER)
        if not choice.message.tool_calls:
            jsonschema.validate(json.loads(choice.message.content), schema)


def test_tools_reach_a_model_whose_template_knows_none(client):
    without = ask(client, tools=openai.NOT_GIVEN, max_tokens=1).usage.prompt_tokens

    assert ask(client, max_tokens=1).usage.prompt_tokens > without + 100


def test_a_round_trip_over_grpc_makes_the_calls_that_http_makes(client, server):
    tools = [
        inference_pb2.Tool(
            name=each["function"]["name"],
            description=each["function"]["description"],
            parameters_json=json.dumps(each["function"]["parameters"]),
        )
        for each in TOOLS
    ]
    question = inference_pb2.ChatMessage(**QUESTION[0])
    over_http = ask(client, tool_choice=NAMED).choices[0]
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        def turn(messages, max_tokens, **choice):
            request = inference_pb2.ChatRequest(
                messages=messages,
                tools=tools,
                tool_choice=inference_pb2.ToolChoice(**choice),
                sampling_params=types_pb2.SamplingParams(temperature=0, max_tokens=max_tokens),
            )
            return list(stub.Chat(request, timeout=60))

        deltas = turn([question], 150, function="get_weather")
        [opening, *more] = [call for delta in deltas for call in delta.tool_calls]
        arguments = opening.arguments_json + "".join(call.arguments_json for call in more)
        call = inference_pb2.ToolCall(id=opening.id, name=opening.name, arguments_json=arguments)
        called = inference_pb2.ChatMessage(role="assistant", tool_calls=[call])
        result = inference_pb2.ChatMessage(role="tool", tool_call_id=call.id, content="Sunny, 21 degrees.")
        answer = turn([question, called, result], 20, mode=inference_pb2.TOOL_CHOICE_MODE_NONE)

    assert deltas[-1].finish_reason == inference_pb2.CHAT_FINISH_REASON_TOOL_CALLS
    assert arguments == over_http.message.tool_calls[0].function.arguments
    jsonschema.validate(json.loads(arguments), WEATHER)
    assert "".join(delta.content for delta in answer)
    assert not any(delta.tool_calls for delta in answer)


@pytest.mark.parametrize(
    "form",
    [
        {"syntax": "regex", "definition": "[0-9]{1,3}( [+*] [0-9]{1,3}){1,3}"},
        {"syntax": "lark", "definition": 'start: NUM (OP NUM)~1..3\nOP: " + " | " * "\nNUM: /[0-9]{1,3}/'},
    ],
    ids=["regex", "lark"],
)
@pytest.mark.parametrize("tool_choice", ["required", {"type": "custom", "name": "calculate"}])
def test_the_input_of_a_custom_tool_is_held_to_its_grammar(client, form, tool_choice):
    tool = {"type": "custom", "name": "calculate", "format": {"type": "grammar", **form}}

    response = client.responses.create(
        model=MODEL,
        input="What is 4 plus 5?",
        tools=[tool],
        tool_choice=tool_choice,
        parallel_tool_calls=False,
        max_output_tokens=80,
        temperature=0,
        store=False,
    )

    [call] = response.output
    assert (call.type, call.name, call.status) == ("custom_tool_call", "calculate", "completed")
    assert re.fullmatch(r"[0-9]{1,3}( [+*] [0-9]{1,3}){1,3}", call.input)
