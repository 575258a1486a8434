"""Answers match /openapi.json: every answer, event and error is valid by its schema, and has no other field."""

import json

import jsonschema
import pytest

from tests.frontend.turns import FORMATS, TEXTS, WEATHER, writes

HI = [{"role": "user", "content": "hi"}]
CHAT_TOOLS = [{"type": "function", "function": {"name": name, "parameters": WEATHER}} for name in ("get_weather", "get_time")]
RESPONSES_TOOLS = [{"type": "function", "name": name, "parameters": WEATHER} for name in ("get_weather", "get_time")]
MESSAGES_TOOLS = [{"name": name, "input_schema": WEATHER} for name in ("get_weather", "get_time")]
EVERYTHING = {"n": 2, "max_tokens": 9, "return_token_ids": True}

# Path, body; each is asked whole and as a stream, where the path streams, and with each kind of turn.
GENERATED = {
    "completion": ("/v1/completions", {"prompt": ["hi", "ho"], **EVERYTHING, "logprobs": 2, "echo": True}),
    "stopped": ("/v1/completions", {"prompt": "hi", "stop": "e"}),
    "scored": ("/v1/completions", {"prompt": "hi", "max_tokens": 0, "echo": True, "logprobs": 1}),
    "chat": ("/v1/chat/completions", {"messages": HI, "tools": CHAT_TOOLS, "logprobs": True, "top_logprobs": 2}),
    "chats": ("/v1/chat/completions", {"messages": HI, **EVERYTHING}),
    "response": (
        "/v1/responses",
        {
            "input": "hi",
            "tools": RESPONSES_TOOLS,
            "top_logprobs": 2,
            "include": ["message.output_text.logprobs"],
            "metadata": {"a": "b"},
            "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "get_weather"}]},
            "reasoning": {"effort": "low"},
        },
    ),
    "short response": ("/v1/responses", {"input": "hi", "max_output_tokens": 1}),
    "response in JSON": (
        "/v1/responses",
        {"input": "hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": WEATHER}, "verbosity": "low"}},
    ),
    "tokens": ("/inference/v1/generate", {"token_ids": [104], "sampling_params": {"n": 2, "max_tokens": 9, "logprobs": 2}}),
    "tokens as text": (
        "/inference/v1/generate",
        {"token_ids": [104], "sampling_params": {"logprobs": 2}, "output_mode": "text", "return_token_ids": True},
    ),
    "message": ("/v1/messages", {"messages": HI, "max_tokens": 400, "tools": MESSAGES_TOOLS}),
    "short message": ("/v1/messages", {"messages": HI, "max_tokens": 1}),
    "stopped message": ("/v1/messages", {"messages": HI, "max_tokens": 99, "stop_sequences": ["e"]}),
}

# As `GENERATED`, of Ollama's API, which streams lines.
LINES = {
    "generate": ("/api/generate", {"prompt": "hi", "logprobs": True, "top_logprobs": 2}),
    "chat": ("/api/chat", {"messages": HI, "tools": CHAT_TOOLS}),
    "nothing": ("/api/chat", {"messages": []}),
}

# Of models that pool; tests/e2e/test_pooling.py asks them.
POOLING = ("/v1/embeddings", "/classify", "/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/v2/embed")
POOLING += ("/api/embed", "/api/embeddings")

# Of a response by its id, in this order.
LIFE = (("get", ""), ("get", "/input_items"), ("post", "/cancel"), ("delete", ""))


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS) as running:
        yield running


@pytest.fixture
def engine(engine):
    """An engine core of few steps, each of several tokens: every event is checked against its schema."""
    engine.tokens_per_step = 7
    return engine


_documents = []


@pytest.fixture
async def api(http):
    """The document: the same of every server, so asked for once."""
    if not _documents:
        _documents.append((await http.get("/openapi.json")).json())
    return _documents[0]


def closed(schema):
    """Return a schema whose objects may have no other fields than those it names."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    return found | {"additionalProperties": False} if "properties" in schema else found


def parts(schema, path=""):
    """Yield a schema and all that is inside it, each with its path."""
    yield path, schema
    for word in ("anyOf", "oneOf"):
        for branch in schema.get(word, ()):
            yield from parts(branch, f"{path}<{branch.get('title', '')}>")
    for word in ("items", "additionalProperties", "contentSchema"):
        if isinstance(schema.get(word), dict):
            yield from parts(schema[word], f"{path}[]")
    for name, field in schema.get("properties", {}).items():
        yield from parts(field, f"{path}.{name}")


def contents(api):
    """Yield (name, content) of every answer of every operation that is not plain text."""
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                for kind, content in answer.get("content", {}).items():
                    if kind != "text/plain":
                        yield f"{method.upper()} {path} {status}", content


def content_of(api, method, path, status=200):
    return api["paths"][path][method]["responses"][str(status)]["content"]


def check(content, answer):
    jsonschema.Draft202012Validator(closed(content["schema"])).validate(answer)


async def events(http, path, body):
    """Return the events of a stream, each as {event, data}, without the closing [DONE]."""
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        blocks = (await response.aread()).decode().strip().split("\n\n")
    found = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    return [event for event in found if event["data"] != "[DONE]"]


def check_events(content, found):
    schema = closed(content["text/event-stream"]["itemSchema"])
    events = jsonschema.Draft202012Validator(schema)
    data = jsonschema.Draft202012Validator(schema["properties"]["data"]["contentSchema"])
    assert found
    for event in found:
        events.validate(event)
        data.validate(json.loads(event["data"]))


async def test_every_field_of_every_answer_says_what_it_means(api):
    silent = [
        f"{name} {path}.{field}"
        for name, content in contents(api)
        for kind in ("schema", "itemSchema")
        for path, part in parts(content.get(kind, {}))
        for field, schema in part.get("properties", {}).items()
        if not schema.get("description")
    ]

    assert silent == []


async def test_every_object_of_an_answer_names_its_fields_or_says_that_they_are_free(api):
    for name, content in contents(api):
        for path, part in (*parts(content.get("schema", {})), *parts(content.get("itemSchema", {}))):
            if part.get("type") == "object":
                assert "properties" in part or "additionalProperties" in part, f"{name} {path}"


async def test_examples_are_valid(api):
    examples = [content for _, content in contents(api) if "example" in content]
    for content in examples:
        check(content, content["example"])

    assert len(examples) > 100


@pytest.mark.parametrize("case", GENERATED)
async def test_what_is_generated_is_as_documented(http, api, engine, case):
    path, body = GENERATED[case]
    content = content_of(api, "post", path)
    for text in TEXTS.values():
        writes(engine, text)
        answer = await http.post(path, json=body)

        assert answer.status_code == 200, answer.text
        check(content["application/json"], answer.json())
        check_events(content, await events(http, path, body))


@pytest.mark.parametrize("case", LINES)
async def test_lines_are_as_documented(http, api, engine, case):
    path, body = LINES[case]
    content = content_of(api, "post", path)
    schema = closed(content["application/x-ndjson"]["itemSchema"])
    for text in TEXTS.values():
        writes(engine, text)
        answer = await http.post(path, json={**body, "stream": False})
        streamed = await http.post(path, json=body)

        check(content["application/json"], answer.json())
        assert streamed.headers["content-type"] == "application/x-ndjson"
        for line in streamed.text.splitlines():
            jsonschema.Draft202012Validator(schema).validate(json.loads(line))


async def test_prompt_logprobs_and_usage_in_every_chunk_are_as_documented(http, api):
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for path, prompt in (("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", {"messages": HI})):
        content = content_of(api, "post", path)
        answer = await http.post(path, json={**prompt, "prompt_logprobs": 2, "return_token_ids": True, "max_tokens": 4})

        check(content["application/json"], answer.json())
        assert "prompt_logprobs" in answer.text
        check_events(content, await events(http, path, {**prompt, **options, "max_tokens": 4}))


async def test_the_life_of_a_response_is_as_documented(http, api, engine):
    writes(engine, TEXTS["all"])
    asked = {"input": [{"role": "user", "content": "hi"}], "tools": RESPONSES_TOOLS}
    first = (await http.post("/v1/responses", json=asked)).json()
    call = first["output"][-1]
    output = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}]
    second = await http.post("/v1/responses", json={"input": output, "previous_response_id": first["id"], "background": True})
    path = f"/v1/responses/{second.json()['id']}"
    followed = await http.post("/v1/responses", json={"input": "hi", "background": True, "stream": True})

    check(content_of(api, "post", "/v1/responses")["application/json"], second.json())
    check_events(content_of(api, "post", "/v1/responses"), stream_of(followed.text))
    one = "/v1/responses/{response_id}"
    for method, suffix in LIFE:
        answer = await http.request(method, path + suffix)
        assert answer.status_code == 200, answer.text
        check(content_of(api, method, one + suffix)["application/json"], answer.json())


def stream_of(text):
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]


_TOP = {"token_id": 104, "logprob": -1.0, "rank": 1}
GIVEN = {
    "request_id": "generate-tokens-1",
    "choices": [{"index": 0, "token_ids": [104], "logprobs": {"content": [_TOP | {"top_logprobs": [_TOP]}]}}],
}
PLAIN = {
    "POST /v1/responses/input_tokens": ("/v1/responses/input_tokens", {"input": "hi"}),
    "POST /v1/messages/count_tokens": ("/v1/messages/count_tokens", {"messages": HI}),
    "GET /api/tags": ("/api/tags", None),
    "GET /api/ps": ("/api/ps", None),
    "POST /api/show": ("/api/show", {"model": "fake"}),
    "GET /api/version": ("/api/version", None),
    "GET /v1/models": ("/v1/models", None),
    "GET /v1/models/{model}": ("/v1/models/fake", None),
    "POST /v1/completions/render": ("/v1/completions/render", {"prompt": ["hi", "ho"]}),
    "POST /v1/chat/completions/render": ("/v1/chat/completions/render", {"messages": HI, "tools": CHAT_TOOLS}),
    "POST /v1/messages/render": ("/v1/messages/render", {"messages": HI, "max_tokens": 9}),
    "POST /v1/responses/render": ("/v1/responses/render", {"input": "hi", "max_output_tokens": 9}),
    "POST /v1/completions/derender": ("/v1/completions/derender", {"generate_responses": [GIVEN]}),
    "POST /v1/chat/completions/derender": (
        "/v1/chat/completions/derender",
        {"generate_response": GIVEN, "chat_request": {"messages": HI, "logprobs": True, "top_logprobs": 1}},
    ),
    "POST /tokenize": ("/tokenize", {"prompt": "hi", "return_token_strs": True}),
    "POST /detokenize": ("/detokenize", {"tokens": [104]}),
    "GET /tokenizer_info": ("/tokenizer_info", None),
    "GET /version": ("/version", None),
    "GET /health": ("/health", None),
    "GET /health/ready": ("/health/ready", None),
    "GET /load": ("/load", None),
    "GET /server_info": ("/server_info", None),
    "POST /pause": ("/pause", None),
    "GET /is_paused": ("/is_paused", None),
    "POST /sleep": ("/sleep", None),
    "POST /release_kv_cache_memory": ("/release_kv_cache_memory", None),
    "POST /wake_up": ("/wake_up", None),
    "GET /is_sleeping": ("/is_sleeping", None),
    "POST /reset_prefix_cache": ("/reset_prefix_cache", None),
    "POST /reset_mm_cache": ("/reset_mm_cache", None),
    "POST /reset_encoder_cache": ("/reset_encoder_cache", None),
    "POST /resume": ("/resume", None),
    "POST /update_weights_from_disk": ("/update_weights_from_disk", {"model_path": "/new"}),
    "POST /init_weight_transfer_engine": ("/init_weight_transfer_engine", {"init_info": {}}),
    "POST /start_weight_update": ("/start_weight_update", None),
    "POST /update_weights": ("/update_weights", {"update_info": {"path": "/new"}}),
    "POST /finish_weight_update": ("/finish_weight_update", {}),
    "POST /update_weight_version": ("/update_weight_version", {"new_version": "2"}),
    "GET /weight_info": ("/weight_info", None),
    "POST /start_profile": ("/start_profile", None),
    "POST /stop_profile": ("/stop_profile", None),
}


CHUNK = {"stream": True, "generate_chunk": GIVEN | {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}}
CHUNKS = {
    "/v1/completions/derender": CHUNK,
    "/v1/chat/completions/derender": CHUNK | {"chat_request": {"messages": HI, "logprobs": True, "top_logprobs": 1}},
}


@pytest.mark.parametrize("path", CHUNKS)
async def test_derendered_chunks_are_as_documented(http, api, path):
    """The first chunk and the second, which has the state of the first; answers and bodies."""
    body, state = requests_of(api, path), None
    for _ in range(2):
        sent = CHUNKS[path] | {"stream_state": state}
        check(body, sent)
        answer = (await http.post(path, json=sent)).json()
        check(content_of(api, "post", path)["application/json"], answer)
        state = answer["stream_state"]


def requests_of(api, path):
    return api["paths"][path]["post"]["requestBody"]["content"]["application/json"]


OF_RECORDINGS = {"POST /v1/audio/transcriptions", "POST /v1/audio/translations"}
"""Tested in test_speech_answers.py."""

BEFORE = {
    "POST /stop_profile": ["POST /start_profile"],
    "POST /finish_weight_update": ["POST /start_weight_update", "POST /update_weights"],
}
"""What must be asked first."""


@pytest.mark.parametrize("operation", PLAIN)
async def test_what_is_told_is_as_documented(http, api, operation):
    method, path = operation.lower().split(" ")
    url, body = PLAIN[operation]

    for earlier in BEFORE.get(operation, ()):
        earlier_url, earlier_body = PLAIN[earlier]
        await http.post(earlier_url, json=earlier_body)

    answer = await http.request(method, url, json=body)

    assert answer.status_code == 200, answer.text
    check(content_of(api, method, path)["application/json"], answer.json())


async def test_no_answer_is_left_out_here(api):
    """A new endpoint with a JSON answer comes into one of these tables."""
    lives = {f"{method.upper()} /v1/responses/{{response_id}}{suffix}" for method, suffix in LIFE}
    tested = {*PLAIN, *lives, *(f"POST {path}" for path, _ in (*GENERATED.values(), *LINES.values()))}
    tested |= {f"POST {path}" for path in POOLING} | OF_RECORDINGS

    documented = {
        name.removesuffix(" 200") for name, content in contents(api) if name.endswith(" 200") and content.get("schema")
    }

    assert documented == tested


WRONG = {
    "POST /v1/completions 400": ("/v1/completions", {"prompt": "hi", "temperature": 3}),
    "POST /v1/completions 404": ("/v1/completions", {"prompt": "hi", "model": "other"}),
    "POST /v1/chat/completions 400": ("/v1/chat/completions", {}),
    "POST /v1/responses 400": ("/v1/responses", {"input": 5}),
    "GET /v1/responses/{response_id} 404": ("/v1/responses/resp_0", None),
    "POST /v1/messages 400": ("/v1/messages", {"messages": HI}),
    "POST /v1/messages 404": ("/v1/messages", {"messages": HI, "max_tokens": 9, "model": "other"}),
    "GET /v1/models/{model} 404": ("/v1/models/other", None),
    "POST /inference/v1/generate 400": ("/inference/v1/generate", {"token_ids": []}),
    "POST /tokenize 400": ("/tokenize", {}),
    "POST /api/chat 400": ("/api/chat", {"messages": HI, "options": {"num_gpu": 1}}),
    "POST /api/show 404": ("/api/show", {"model": "other"}),
}


@pytest.mark.parametrize("operation", WRONG)
async def test_errors_are_as_documented(http, api, operation):
    method, path, status = operation.lower().split(" ")
    url, body = WRONG[operation]

    answer = await http.request(method, url, json=body)

    assert str(answer.status_code) == status
    check(content_of(api, method, path, status)["application/json"], answer.json())
