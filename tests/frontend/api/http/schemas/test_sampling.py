"""Sampling fields and log-probabilities of HTTP bodies, on their way to the engine and back."""

import json

import pytest

EMOJI = "a🙂é漢"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def http(serve_frontend):
    async with serve_frontend() as frontend:
        yield frontend.http


@pytest.fixture
def says(engine):
    """`says(text)` makes the engine repeat a text, a byte a token."""

    def say(text):
        data = text.encode()
        engine.reply = lambda _, position: data[position % len(data)]
        return len(data)

    return say


async def events(http, path, body):
    async with http.stream("POST", path, json=body | {"stream": True}) as response:
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", CHAT)])
async def test_fields_beyond_openais_reach_the_engine(http, engine, path, body):
    extra = {
        "repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 3},
        "logprob_token_ids": [5, 6],
        "bad_words": ["x"],
        "allowed_token_ids": [1, 2],
        "stop": None,
        "min_p": 0.1,
    }

    response = await http.post(path, json=body | extra)

    assert response.status_code == 200, response.text
    params = engine.requests[-1].sampling_params
    found = params.repetition_detection
    assert (found.max_pattern_size, found.min_pattern_size, found.min_count) == (4, 2, 3)
    assert (list(params.logprob_token_ids), params.logprobs) == ([5, 6], 2)
    assert list(params.allowed_token_ids) == [1, 2]


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", CHAT)])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("watermarking", True),
        ("logits_processors", ["my.processor"]),
        ("ec_transfer_params", {"a": 1}),
    ],
)
async def test_fields_of_vllm_that_no_service_reads_are_refused(http, path, body, field, value):
    response = await http.post(path, json=body | {field: value})

    error = response.json()["error"]
    assert (response.status_code, error["message"]) == (400, f"{field} is not supported by this server.")
    assert error["param"] == field


async def test_fields_of_vllm_that_ask_for_nothing_are_taken(http):
    nothing = {"watermarking": False, "logits_processors": [], "kv_transfer_params": {}, "ec_transfer_params": None}

    assert (await http.post("/v1/completions", json={"prompt": "hi", **nothing})).status_code == 200


async def test_a_wrong_repetition_detection_is_refused(http, engine):
    body = {"prompt": "hi", "repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 1}}

    response = await http.post("/v1/completions", json=body)

    assert response.status_code == 400
    assert response.json()["error"]["message"] == "repetition_detection.min_count must be at least 2, got 1."
    assert not engine.requests


async def test_chat_logprobs_of_split_characters_have_the_bytes_of_the_text(http, says):
    body = CHAT | {"max_tokens": says(EMOJI), "logprobs": True, "top_logprobs": 1}

    choice = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
    streamed = [event["choices"][0] for event in await events(http, "/v1/chat/completions", body) if event["choices"]]

    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == EMOJI
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == EMOJI
    assert [each for part in streamed if part["logprobs"] for each in part["logprobs"]["content"]] == content


async def test_chat_tokens_as_ids(http):
    body = CHAT | {"max_tokens": 1, "logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}

    [token] = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]["logprobs"]["content"]

    assert (token["token"], token["bytes"]) == ("token_id:84", [84])
    assert [top["token"] for top in token["top_logprobs"]] == ["token_id:84", "token_id:85"]


async def test_completion_tokens_as_ids(http):
    body = {"prompt": "hi", "max_tokens": 2, "logprobs": 1, "return_tokens_as_token_ids": True}

    logprobs = (await http.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]

    assert (logprobs["tokens"], logprobs["text_offset"]) == (["token_id:84", "token_id:104"], [0, 1])
    assert logprobs["top_logprobs"] == [{"token_id:84": -0.5}, {"token_id:104": -0.5}]


@pytest.mark.parametrize("prompt", ["hé🙂", list("hé🙂".encode())])
async def test_echo_scores_the_prompt_at_its_places_in_the_text(http, prompt):
    body = {"prompt": prompt, "max_tokens": 3, "echo": True, "logprobs": 1}

    choice = (await http.post("/v1/completions", json=body)).json()["choices"][0]

    logprobs = choice["logprobs"]
    assert choice["text"] == "hé🙂The"
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"] == [None] + [-0.5] * 9
    assert logprobs["top_logprobs"][0] is None
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)


async def test_a_scored_prompt_has_no_completion(http):
    body = {"prompt": "hey", "max_tokens": 0, "echo": True, "logprobs": 0}

    result = (await http.post("/v1/completions", json=body)).json()

    choice = result["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("hey", ["h", "e", "y"])
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert result["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("fields", [{}, {"stop": ["zzzz"]}, {"echo": True}, {"echo": True, "stop": ["zzzz"]}])
async def test_streamed_completion_logprobs_add_up_to_the_whole(http, says, fields):
    body = {"prompt": "é", "max_tokens": says(EMOJI + "bcd"), "logprobs": 1} | fields

    whole = (await http.post("/v1/completions", json=body)).json()["choices"][0]
    choices = [choice for event in await events(http, "/v1/completions", body) for choice in event["choices"]]

    assert "".join(choice["text"] for choice in choices) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert [each for choice in choices if choice["logprobs"] for each in choice["logprobs"][name]] == values


async def test_logprobs_of_chosen_ids_are_shown_without_asking_for_top_ones(http):
    body = {"prompt": "hi", "max_tokens": 1, "logprob_token_ids": [5, 6]}

    completion = (await http.post("/v1/completions", json=body)).json()["choices"][0]
    chat = (await http.post("/v1/chat/completions", json=CHAT | body)).json()["choices"][0]

    assert len(completion["logprobs"]["top_logprobs"][0]) == 2  # the fake engine's candidates, the sampled one among them
    assert len(chat["logprobs"]["content"][0]["top_logprobs"]) == 2
