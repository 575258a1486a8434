"""/openapi.json and /docs: every endpoint, every field with its meaning, every kind of answer, from this server alone."""

import re
from pathlib import Path

import jsonschema
import pytest

from tetrad.frontend.parsing.registry import ALIASES, REASONING_FORMATS, TOOL_FORMATS

ENDPOINTS = {
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "GET /v1/responses/{response_id}",
    "POST /v1/responses/{response_id}/cancel",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /api/generate",
    "POST /api/chat",
    "POST /api/embed",
    "POST /api/embeddings",
    "GET /api/tags",
    "POST /api/show",
    "GET /api/ps",
    "GET /api/version",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/completions/render",
    "POST /v1/chat/completions/render",
    "POST /inference/v1/generate",
    "POST /inference/v1/abort_requests",
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
    "POST /release_kv_cache_memory",
    "POST /wake_up",
    "GET /is_sleeping",
    "POST /reset_prefix_cache",
    "POST /reset_mm_cache",
    "POST /reset_encoder_cache",
    "POST /start_weight_update",
    "GET /weight_info",
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
            answers = found["responses"]["200"]["content"]
            assert (answers.get("application/json") or answers["text/plain"])["schema"], name
        # FastAPI's own validation error: no request is answered so.
        assert "422" not in found["responses"], name
        for status, response in found["responses"].items():
            if int(status) >= 400:
                assert response["content"]["application/json"]["example"], name


async def test_no_reference_leads_nowhere(api):
    assert "$ref" not in str(api)


async def test_the_page_runs_swagger_ui_from_this_server_alone(http):
    page = await http.get("/docs")
    linked = re.findall(r"(?:src|href)=\"([^\"]*)\"", page.text)
    files = {link: await http.get(f"/{link}") for link in linked if link.startswith("docs/")}

    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert "<script>" not in page.text
    assert set(linked) - set(files) == {"./", "openapi.json"}
    assert {link: answer.status_code for link, answer in files.items()} == dict.fromkeys(files, 200)
    assert "SwaggerUIBundle" in files["docs/static/swagger-ui-bundle.js"].text
    assert 'url: "openapi.json"' in files["docs/static/docs.js"].text


async def test_the_page_has_no_other_files(http):
    assert (await http.get("/docs/static/redoc.standalone.js")).status_code == 404
    assert (await http.get("/docs/static/..%2Fpage.py")).status_code == 404


async def test_required_fields_come_first(api):
    for name, found in operations(api).items():
        for content in found.get("requestBody", {}).get("content", {}).values():
            for form in content["schema"].get("oneOf", [content["schema"]]):
                required = form.get("required", [])
                assert set(list(form["properties"])[: len(required)]) == set(required), name


def requests_of(api):
    """Return the content of each JSON body by its operation."""
    bodies = {name: found["requestBody"]["content"] for name, found in operations(api).items() if "requestBody" in found}
    return {name: body["application/json"] for name, body in bodies.items() if "application/json" in body}


async def test_every_body_but_those_of_adapters_has_a_valid_example(api):
    for name, content in requests_of(api).items():
        if "lora_adapter" not in name:
            jsonschema.Draft202012Validator(content["schema"]).validate(content["example"])


async def test_the_examples_of_a_model_that_generates_are_answered(http, api):
    tags = {name: found["tags"] for name, found in operations(api).items()}
    examples = {
        name: content["example"] for name, content in requests_of(api).items() if tags[name] in (["generate"], ["tokens"])
    }
    examples["POST /detokenize"] = {"tokens": [104]}  # the fake vocabulary has 300 ids
    examples["POST /inference/v1/generate"]["token_ids"] = [104]

    answers = {name: await http.post(name.split()[1], json=body) for name, body in examples.items()}

    assert len(answers) > 8
    assert {name: answer.text for name, answer in answers.items() if answer.status_code != 200} == {}


async def test_the_reference_names_every_endpoint_and_every_format(api):
    reference = (Path(__file__).parents[5] / "docs" / "requests.md").read_text()

    assert [name for name in operations(api) if f"`{name}`" not in reference] == []
    for title, formats in (("## Tools", TOOL_FORMATS), ("## Reasoning", REASONING_FORMATS)):
        section = reference.partition(title)[2].partition("\n## ")[0]
        # In the order in which templates are tried; formats of several marks may share a name.
        names = list(dict.fromkeys(each.name for each in formats))
        assert re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE) == names
        aliases = [alias for alias, meant in ALIASES.items() if alias not in names and set(meant) & set(names)]
        assert [alias for alias in aliases if f"`{alias}`" not in section] == []
