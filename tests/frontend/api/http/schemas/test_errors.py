"""Every refusal: its status, its field, and OpenAI's error object. Nothing wrong reaches the engine."""

import asyncio
import json
import time

import pytest

from tetrad.services.errors import FailedPrecondition

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def check_error(response, status, text, param=None):
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert text in error["message"]
    assert error["param"] == param
    return error


WRONG_FIELDS = (
    ({"temperature": -1}, "temperature", "temperature must be non-negative, got -1"),
    ({"temperature": 2.1}, "temperature", "temperature must be in [0, 2], got 2.1."),
    ({"temperature": "hot"}, "temperature", "temperature must be a number, got 'hot'."),
    ({"top_p": 0}, "top_p", "top_p must be in (0, 1], got 0"),
    ({"top_p": 1.1}, "top_p", "top_p must be in (0, 1], got 1.1."),
    ({"top_k": -2}, "top_k", "top_k must be 0 (disable), or at least 1, got -2."),
    ({"min_p": 1.5}, "min_p", "min_p must be in [0, 1], got 1.5."),
    ({"n": 0}, "n", "n must be at least 1, got 0."),
    ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0."),
    ({"max_tokens": "many"}, "max_tokens", "max_tokens must be an integer, got 'many'."),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens", "min_tokens must be less than or equal to max_tokens=3, got 4."),
    ({"presence_penalty": 3}, "presence_penalty", "presence_penalty must be in [-2, 2], got 3"),
    ({"frequency_penalty": -3}, "frequency_penalty", "frequency_penalty must be in [-2, 2], got -3"),
    ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty must be greater than zero, got 0"),
    ({"seed": 2**63}, "seed", "seed must fit 64 bits"),
    ({"stop": [""]}, "stop", "stop cannot contain an empty string."),
    ({"stop": ["a"] * 65}, "stop", "at most 64 strings, got 65"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "got the key 'x'"),
    ({"logit_bias": {"999": 1}}, "logit_bias", "out-of-vocab"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "allowed_token_ids is not None and empty!"),
    ({"priority": 2**40}, "priority", "priority must fit 32 bits"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "Stream options can only be defined when `stream=True`."),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "multiple are specified"),
    ({"cache_salt": "a/b"}, "cache_salt", "cache_salt"),
    ({"cache_salt": ""}, "cache_salt", "at least 1 character, got ''"),
    ({"request_id": "a b"}, "request_id", "request_id must match"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "got 0"),
)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_wrong_field_is_named(http, engine, path):
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": MESSAGES}

    for fields, param, text in WRONG_FIELDS:
        error = check_error(await http.post(path, json=body | fields), 400, text, param)
        assert error["type"] == "invalid_request_error"

    assert engine.requests == []


WRONG_BODIES = (
    (COMPLETIONS, {}, "prompt", "Either prompt or prompt_embeds must be provided and non-empty."),
    (COMPLETIONS, {"prompt": ""}, "prompt", "The decoder prompt cannot be empty"),
    (COMPLETIONS, {"prompt": []}, "prompt", "The decoder prompt cannot be empty"),
    (COMPLETIONS, {"prompt": "hi", "guided_regex": "[a-z]+"}, "guided_regex", "use structured_outputs with regex."),
    (COMPLETIONS, {"prompt": "hi", "structural_tag": "{}"}, "structural_tag", "use structured_outputs with structural_tag."),
    (COMPLETIONS, {"prompt": [[]]}, "prompt", "The decoder prompt cannot be empty"),
    (COMPLETIONS, {"prompt": 5}, "prompt", "prompt must be a string, a list of strings,"),
    (COMPLETIONS, {"prompt": [5, 999]}, "prompt", "Token id 999"),
    (COMPLETIONS, {"prompt": ["a"] * 1025}, "prompt", "at most 1024 prompts, got 1025"),
    (COMPLETIONS, {"prompt": "hi", "logprobs": 21}, "logprobs", "greater than max allowed: 20"),
    (COMPLETIONS, {"prompt": "hi", "logprobs": -2}, "logprobs", "logprobs must be non-negative or -1, got -2."),
    (COMPLETIONS, {"prompt": "hi", "suffix": "x"}, "suffix", "suffix is not currently supported"),
    (COMPLETIONS, {"prompt": "hi", "n": 2, "best_of": 1}, "best_of", "best_of must be greater than or equal to n"),
    (COMPLETIONS, {"prompt": "hi", "best_of": 1025}, "best_of", "best_of must be at most 1024, got 1025."),
    (CHAT, {}, "messages", "messages: Field required"),
    (CHAT, {"messages": []}, "messages", "messages cannot be empty"),
    (CHAT, {"messages": [{"content": "x"}]}, "messages.0.role", "Field required"),
    (CHAT, {"messages": [{"role": "user", "content": {}}]}, "messages.0.content", "must be a string or a list, got {}."),
    (
        COMPLETIONS,
        {"prompt": "a", "structured_outputs": {"json": 5}},
        "structured_outputs.json",
        "a string or an object, got 5.",
    ),
    (COMPLETIONS, {"prompt": "a", "stop": 5}, "stop", "stop must be a string or a list, got 5."),
    (CHAT, {"messages": [{"role": "user", "content": "forbidden"}]}, "messages", "Conversation roles must alternate"),
    (CHAT, {"messages": [{"role": "narrator", "content": ""}]}, "messages[0].role", "unknown role 'narrator'"),
    (CHAT, {"messages": MESSAGES, "top_logprobs": 2}, None, "`logprobs` must be set to true"),
    (CHAT, {"messages": MESSAGES, "tool_choice": "auto"}, None, "`tools` must be set"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0]",
        "fake is not a multimodal model",
    ),
    ("/tokenize", {}, "prompt", "Exactly one of `prompt` and `messages`"),
    ("/detokenize", {"tokens": [999]}, "tokens", "Token id 999 is out of vocabulary"),
)


async def test_wrong_body_is_refused(http, engine):
    for path, body, param, text in WRONG_BODIES:
        check_error(await http.post(path, json=body), 400, text, param)

    assert engine.requests == []


NO_JSON = (
    (b"{", "application/json", 400, "not valid JSON"),
    (b"", "application/json", 400, "not valid JSON"),
    (b"[]", "application/json", 400, ""),
    (b'{"prompt": "\xff"}', "application/json", 400, "not UTF-8: byte 12 is 0xff"),
    (b'{"prompt": "\\ud800"}', "application/json", 400, "surrogate"),
    (b"prompt=hi", "application/x-www-form-urlencoded", 415, "must be application/json"),
    (b"hi", "text/plain", 415, "must be application/json, got 'text/plain'"),
)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
async def test_body_that_is_no_json_is_refused(http, path):
    for content, content_type, status, text in NO_JSON:
        response = await http.post(path, content=content, headers={"content-type": content_type})
        check_error(response, status, text)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize"])
async def test_unknown_model_is_404(http, path):
    body = {"prompt": "hi"} if path != CHAT else {"messages": MESSAGES}

    response = await http.post(path, json={"model": "x", **body})

    error = check_error(response, 404, "The model `x` does not exist.", "model")
    assert error["code"] == "model_not_found"


async def test_unknown_model_card_is_404(http):
    check_error(await http.get("/v1/models/x"), 404, "The model `x` does not exist.", "model")


async def test_unknown_path_and_method(http):
    check_error(await http.get("/v1/nothing"), 404, "There is nothing at /v1/nothing.")
    response = await http.get(COMPLETIONS)
    check_error(response, 405, "does not take GET requests")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "x" * 600}),
        (COMPLETIONS, {"prompt": "x" * 90_000}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 600}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 90_000}]}),
        ("/v1/responses", {"input": "x" * 600}),
    ],
)
async def test_a_prompt_over_the_context_has_the_code_and_the_words_that_clients_look_for(http, path, body, stream):
    response = await http.post(path, json=body | {"stream": stream})

    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("This model's maximum context length is 512 tokens. However, you requested ")


async def test_ten_megabytes_are_refused_at_once(http, tokenizer):
    start = time.monotonic()

    check_error(await http.post(COMPLETIONS, json={"prompt": "x" * 10_000_000}), 400, "10000000 characters", "prompt")

    assert time.monotonic() - start < 2
    assert tokenizer.num_encoded == 0


@pytest.mark.parametrize("chunked", [True, False])
async def test_oversized_body_is_413(serve_frontend, chunked):
    async def pieces():
        for _ in range(5):
            yield b" " * 1000

    async with serve_frontend(max_body_bytes=4096) as frontend:
        content = pieces() if chunked else b" " * 5000
        response = await frontend.http.post(COMPLETIONS, content=content, headers={"content-type": "application/json"})

    check_error(response, 413, "at most 4096 are taken")


async def test_wrong_stream_is_refused_with_its_status(http):
    check_error(await http.post(COMPLETIONS, json={"prompt": "", "stream": True}), 400, "cannot be empty", "prompt")


async def test_nan_is_refused(http):
    response = await http.post(COMPLETIONS, content=b'{"prompt": "hi", "temperature": NaN}')

    assert response.status_code == 400


async def test_deep_nesting_is_refused_and_the_server_goes_on(http):
    nested = "[" * 50_000 + "]" * 50_000
    response = await http.post(COMPLETIONS, content=f'{{"prompt": {nested}}}'.encode())

    assert response.status_code == 400
    assert (await http.get("/health")).status_code == 200


async def test_garbage_never_gives_a_500(http, engine):
    """Wrong types, and numbers too large for any wire."""
    values = [None, True, -1, 1.5, 1e308, 2**31, 2**32, 10**30, "x", "", [], {}, [None], [[]], {"a": {}}]
    fields = ["model", "n", "stop", "seed", "logit_bias", "stream_options", "top_k", "max_tokens", "logprobs", "bad_words"]
    fields += ["stop_token_ids", "response_format", "priority", "cache_salt", "chat_template_kwargs", "tools", "prompt"]
    fields += ["min_tokens", "thinking_token_budget", "truncate_prompt_tokens", "stream_interval", "repetition_detection"]
    cases = [(field, value) for field in fields for value in values]
    few_at_once = asyncio.Semaphore(16)

    async def post(field, value):
        path, base = (
            (CHAT, {"messages": MESSAGES}) if field in ("tools", "chat_template_kwargs") else (COMPLETIONS, {"prompt": "hi"})
        )
        body = base | {"max_tokens": 2} | {field: value}
        async with few_at_once:  # all at once would be refused where the machine has other work, too
            return await http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})

    responses = await asyncio.gather(*(post(*case) for case in cases))

    wrong = [case for case, response in zip(cases, responses, strict=True) if response.status_code not in (200, 400, 404)]
    assert wrong == []


async def test_what_the_present_state_makes_impossible_is_a_conflict_and_no_bug(frontend, engine):
    engine.reject = lambda request: FailedPrecondition("The files of adapter 'a' have changed.", reason="LORA_CHANGED")

    response = await frontend.http.post(COMPLETIONS, json={"prompt": "hi"})

    error = check_error(response, 409, "The files of adapter 'a' have changed.")
    assert (error["type"], error["code"]) == ("invalid_request_error", "lora_changed")
