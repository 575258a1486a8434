"""/openapi.json and /docs: every endpoint, every field with its meaning, every kind of answer, from this server alone."""

import html
import re
from pathlib import Path

import pytest

from tetrad.frontend.parsing.registry import REASONING_FORMATS, TOOL_FORMATS

ENDPOINTS = {
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "GET /v1/responses/{response_id}",
    "POST /v1/responses/{response_id}/cancel",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "POST /tokenize",
    "POST /detokenize",
    "GET /tokenizer_info",
    "GET /health",
    "GET /ping",
    "POST /ping",
    "GET /version",
    "GET /metrics",
    "GET /load",
    "GET /server_info",
    "POST /pause",
    "POST /resume",
    "GET /is_paused",
    "POST /sleep",
    "POST /wake_up",
    "GET /is_sleeping",
    "POST /reset_prefix_cache",
    "POST /start_profile",
    "POST /stop_profile",
}


@pytest.fixture
async def api(http):
    return (await http.get("/openapi.json")).json()


def operations(api):
    return {f"{method.upper()} {path}": found for path, methods in api["paths"].items() for method, found in methods.items()}


def undescribed(schema, path):
    """Yield the fields of a schema that say nothing of their meaning."""
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *([schema["items"]] if "items" in schema else ())):
        yield from undescribed(branch, path)
    for name, field in schema.get("properties", {}).items():
        if not field.get("description"):
            yield f"{path}.{name}"
        yield from undescribed(field, f"{path}.{name}")


def meanings(node):
    """Yield the descriptions of all fields, of events, too."""
    for name, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if name == "properties":
            yield from (field["description"] for field in value.values())
        yield from meanings(value)


async def test_every_endpoint_is_there(api):
    assert set(operations(api)) >= ENDPOINTS


async def test_every_field_of_every_body_says_what_it_means(api):
    bodies = {
        name: content["schema"]
        for name, found in operations(api).items()
        for content in found.get("requestBody", {}).get("content", {}).values()
    }

    assert len(bodies) >= 8
    assert [field for name, schema in bodies.items() for field in undescribed(schema, name)] == []


async def test_every_parameter_says_what_it_means(api):
    parameters = [(name, each) for name, found in operations(api).items() for each in found.get("parameters", ())]

    assert [(name, each["name"]) for name, each in parameters if not each.get("description")] == []


async def test_every_operation_says_what_it_does_and_how_it_answers(api):
    tags = {tag["name"] for tag in api["tags"]}
    for name, found in operations(api).items():
        assert found["summary"] and found["description"], name
        assert set(found["tags"]) <= tags and found["tags"], name
        assert "200" in found["responses"], name
        if "requestBody" in found:
            assert {"400", "401", "404", "413", "415", "500"} <= set(found["responses"]), name
            assert found["responses"]["200"]["content"]["application/json"]["schema"], name
        # FastAPI's own validation error: no request is answered so.
        assert "422" not in found["responses"], name
        for status, response in found["responses"].items():
            if int(status) >= 400:
                assert response["content"]["application/json"]["example"], name


async def test_no_reference_leads_nowhere(api):
    assert "$ref" not in str(api)


async def test_the_page_shows_every_field_with_its_meaning_and_asks_no_other_host(http, api):
    response = await http.get("/docs")
    page = html.unescape(response.text)

    assert response.headers["content-type"].startswith("text/html")
    assert "<script" not in page
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    for found in operations(api).values():
        for content in found.get("requestBody", {}).get("content", {}).values():
            for name, field in content["schema"]["properties"].items():
                assert f"<code>{name}</code>" in page
                assert field["description"] in page
        for status, answer in found["responses"].items():
            # Errors are shown as examples: they are all alike.
            for content in answer["content"].values() if status == "200" else ():
                # Of an event, its data is what has fields.
                events = content.get("itemSchema", {}).get("properties", {}).get("data", {})
                assert [meaning for meaning in meanings(events or content) if meaning not in page] == []


async def test_the_reference_names_every_endpoint_and_every_format(api):
    reference = (Path(__file__).parents[3] / "docs" / "requests.md").read_text()

    assert [name for name in operations(api) if f"`{name}`" not in reference] == []
    for title, formats in (("## Tools", TOOL_FORMATS), ("## Reasoning", REASONING_FORMATS)):
        section = reference.partition(title)[2].partition("\n## ")[0]
        # In the order in which templates are tried.
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [each.name for each in formats]
