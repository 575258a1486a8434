"""An error of the engine core about a constraint names the field that the client has sent."""

import pytest

from tests.frontend.chat.asking import MESSAGES, TOOLS
from tetrad.services.errors import InvalidRequest

SCHEMA = {"type": "object", "properties": {"a": {"not": {}}}}
JSON_SCHEMA = {"type": "json_schema", "name": "x", "schema": SCHEMA}
REQUESTS = {
    "structured_outputs": ("/v1/chat/completions", {"messages": MESSAGES, "structured_outputs": {"json": SCHEMA}}),
    "response_format": (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        },
    ),
    "tools": ("/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required"}),
    "text.format": ("/v1/responses", {"input": "hi", "text": {"format": JSON_SCHEMA}}),
}


async def error_of(frontend, path, body):
    response = await frontend.http.post(path, json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize("field", REQUESTS)
async def test_the_field_of_the_engines_error_is_that_of_the_request(frontend, engine, field):
    engine.reject = lambda _: InvalidRequest("json_schema cannot be used: no `not`.", field="structured_outputs")

    error = await error_of(frontend, *REQUESTS[field])

    assert (error["param"], error["message"]) == (field, "json_schema cannot be used: no `not`.")


async def test_another_error_keeps_its_field(frontend, engine):
    engine.reject = lambda _: InvalidRequest("no", field="bad_words")

    error = await error_of(frontend, *REQUESTS["response_format"])

    assert error["param"] == "bad_words"


async def test_a_schema_that_the_frontend_refuses_is_named_as_well(frontend):
    schema = {}
    for _ in range(70):
        schema = {"properties": {"a": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}

    error = await error_of(frontend, "/v1/chat/completions", {"messages": MESSAGES, "response_format": form})

    assert (error["param"], error["message"]) == ("response_format", "response_format is nested deeper than 64 levels.")
