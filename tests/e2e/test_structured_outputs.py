"""Structured outputs over HTTP, from the real model: answers satisfy their constraint, and unsupported
constraints are a 400.
"""

import asyncio
import json
import re
from collections.abc import Iterator

import httpx
import jsonschema
import openai
import pytest

from tests.e2e.library_calls import value_of
from tests.e2e.tiny_model import save_tiny_model
from tests.one_process_llm import one_process_llm
from tetrad import SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams

MODEL = "smollm2-135m-instruct"
NAME = {"type": "string", "maxLength": 12}
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}


def record(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False, **more}


PERSON = record({"name": NAME, "age": SMALL, "colour": {"enum": ["red", "green", "blue"]}})
SCHEMAS = {
    "person": PERSON,
    "list": {"type": "array", "items": SMALL, "minItems": 2, "maxItems": 4},
    "variants": {
        "oneOf": [record({"kind": {"const": "cat"}, "lives": SMALL}), record({"kind": {"const": "dog"}, "name": NAME})]
    },
    "date": record({"day": {"type": "string", "format": "date"}, "ok": {"type": "boolean"}}),
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "tree": record(
        {"value": SMALL, "children": {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2}},
        **{"$defs": {"leaf": record({"value": SMALL})}},
    ),
    "map": {"type": "object", "additionalProperties": SMALL, "minProperties": 1, "maxProperties": 2},
}


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as opened:
        yield opened


def in_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def ask(client, text="Tell me something.", **fields):
    fields = {"model": MODEL, "max_tokens": 120, "seed": 1, "temperature": 0.8} | fields
    return client.chat.completions.create(messages=[{"role": "user", "content": text}], **fields)


async def test_answers_validate_beside_each_other_and_beside_plain_ones(server):
    """One batch of seven schemas and two plain requests."""

    async def complete(client, **fields):
        body = {"model": MODEL, "prompt": "As JSON: ", "max_tokens": 120, "seed": 3} | fields
        response = await client.post(f"{server.url}/v1/completions", json=body, timeout=100)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]

    async with httpx.AsyncClient() as client:
        answers = [complete(client, structured_outputs={"json": schema}) for schema in SCHEMAS.values()]
        plain = [complete(client, max_tokens=20) for _ in range(2)]
        *choices, first, second = await asyncio.gather(*answers, *plain)

    for choice, schema in zip(choices, SCHEMAS.values(), strict=True):
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), schema)
    assert first["text"] == second["text"] != ""


def test_a_stream_brings_what_the_whole_answer_is(client):
    fields = {"response_format": in_schema(PERSON), "temperature": 0}
    whole = ask(client, **fields).choices[0]
    chunks = [chunk.choices[0] for chunk in ask(client, stream=True, **fields) if chunk.choices]

    jsonschema.validate(json.loads(whole.message.content), PERSON)
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason == "stop"


def test_each_of_n_choices_fits_and_has_its_logprobs(client):
    answer = ask(client, response_format=in_schema(PERSON), n=3, logprobs=True, top_logprobs=2)

    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), PERSON)
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_a_stop_string_ends_a_constrained_answer_early(client):
    answer = ask(client, response_format=in_schema(PERSON), stop=['"age"'])

    assert answer.choices[0].finish_reason == "stop"
    assert '"name"' in answer.choices[0].message.content
    assert '"age"' not in answer.choices[0].message.content


def test_json_object_is_an_object_or_the_beginning_of_one(client):
    choice = ask(client, "Describe a cat as JSON.", max_tokens=40, response_format={"type": "json_object"}).choices[0]

    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"regex": "[A-Z][a-z]{2,8}-[0-9]{2}"}, "[A-Z][a-z]{2,8}-[0-9]{2}"),
        ({"choice": ["positive", "negative"]}, "positive|negative"),
        ({"grammar": 'root ::= "SELECT " [a-z]{1,5} " FROM " ("cats" | "dogs")'}, "SELECT [a-z]{1,5} FROM (cats|dogs)"),
        ({"grammar": 'start: "<" WORD ">"\nWORD: /[a-z]{1,6}/'}, "<[a-z]{1,6}>"),
    ],
)
def test_other_constraints(client, constraint, pattern):
    answer = ask(client, max_tokens=30, extra_body={"structured_outputs": constraint})

    assert re.fullmatch(pattern, answer.choices[0].message.content)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"response_format": in_schema({"not": {"type": "string"}})}, "keywords of JSON schema are not supported: not"),
        ({"structured_outputs": {"regex": "["}}, "unclosed character class"),
        ({"structured_outputs": {"grammar": "start: missing"}}, "missing"),
    ],
)
def test_a_bad_constraint_is_a_400_and_the_next_request_is_answered(server, body, text):
    def post(**fields):
        return httpx.post(f"{server.url}/v1/completions", json={"model": MODEL, "prompt": "Hi", "max_tokens": 2, **fields})

    refused = post(**body)

    assert refused.status_code == 400
    assert [refused.json()["error"]["param"]] == list(body)
    assert text in refused.text
    assert post().status_code == 200


def test_preempted_answers_fit(tmp_path):
    """KV blocks for a fraction of the requests, which run in turns therefore. The model is a tiny one."""
    params = SamplingParams(max_tokens=100, n=8, seed=1, structured_outputs=StructuredOutputsParams(json=PERSON))
    with one_process_llm(save_tiny_model(tmp_path), max_model_len=144, num_gpu_blocks_override=13) as llm:
        [output] = llm.generate("A: ", params, use_tqdm=False)
        num_preemptions = value_of(llm, "tetrad:num_preemptions")

    assert len(output.outputs) == 8
    for each in output.outputs:
        jsonschema.validate(json.loads(each.text), PERSON)
    assert num_preemptions > 0
