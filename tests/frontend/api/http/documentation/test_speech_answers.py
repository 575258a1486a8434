"""The answers of /v1/audio are as /openapi.json documents them."""

import json

import jsonschema
import pytest

from tests.frontend.api.http.documentation.test_answers import closed
from tests.frontend.fakes.speech import AUDIO, TASKS, says
from tetrad.frontend.api.http.audio.bodies import TranscriptionForm


@pytest.fixture
async def http(tokenizer, engine, serve_frontend):
    tokenizer.modalities = engine.modalities = AUDIO
    tokenizer.speech.tasks, engine.transcribes = TASKS, True
    engine.reply = says({"first": [*b" one", 204]})
    async with serve_frontend(listen="127.0.0.1:0") as running:
        yield running.http


async def documented(http, path):
    return (await http.get("/openapi.json")).json()["paths"][path]["post"]


async def ask(http, path, **fields):
    answer = await http.post(path, files={"file": ("a.wav", b"first")}, data=fields)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
@pytest.mark.parametrize("form", ["json", "verbose_json"])
async def test_an_answer_is_as_documented(http, path, form):
    content = (await documented(http, path))["responses"]["200"]["content"]["application/json"]

    answer = (await ask(http, path, response_format=form)).json()

    schema = jsonschema.Draft202012Validator(closed(content["schema"]))
    schema.validate(answer)
    schema.validate(content["example"])


async def test_an_event_is_as_documented(http):
    path = "/v1/audio/transcriptions"
    content = (await documented(http, path))["responses"]["200"]["content"]["text/event-stream"]
    data = content["itemSchema"]["properties"]["data"]["contentSchema"]

    answer = await ask(http, path, stream="true", stream_include_usage="true")

    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert len(events) > 2
    for event in events:
        jsonschema.Draft202012Validator(data).validate(event)


async def test_the_form_has_a_file(http):
    operation = await documented(http, "/v1/audio/transcriptions")
    schema = operation["requestBody"]["content"]["multipart/form-data"]["schema"]

    assert schema["required"] == ["file"]
    assert schema["properties"]["file"]["format"] == "binary"
    assert set(schema["properties"]) == set(TranscriptionForm.model_fields)
