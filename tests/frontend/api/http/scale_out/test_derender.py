"""Derendering: a request that is rendered, generated and derendered has the answer of the request itself."""

import pytest

from tests.frontend.turns import FORMATS, TEXTS, WEATHER, writes

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": WEATHER}} for name in ("get_weather", "get_time")]
GIVEN = {"request_id": "r", "choices": [{"index": 0, "token_ids": [104, 105]}]}


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS) as running:
        yield running


async def told(http, path, body):
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def plain(answer):
    """Return an answer without what is new in each: ids and times."""
    for choice in answer["choices"]:
        for call in choice.get("message", {}).get("tool_calls", ()):
            del call["id"]
    return {name: value for name, value in answer.items() if name not in ("id", "created", "usage")} | {
        "usage": {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 2, "logprobs": True, "return_token_ids": True, "return_prompt_text": True, "temperature": 0},
        {"stop": ["e"]},
        {"stop": ["e"], "include_stop_str_in_output": True},
        {"stop_token_ids": [101]},
        {"stop_token_ids": [101], "include_stop_str_in_output": True},
        {"max_tokens": 5},
        {"include_reasoning": False, "tool_choice": "none"},
    ],
)
@pytest.mark.parametrize("kind", ["text", "unicode", "all"])
async def test_a_chat_in_parts_has_the_answer_of_the_chat(http, engine, kind, options):
    writes(engine, TEXTS[kind])
    body = {"messages": HI, "tools": TOOLS, "seed": 5, **options}

    expected = await told(http, "/v1/chat/completions", body)
    request = await told(http, "/v1/chat/completions/render", body)
    generated = await told(http, "/inference/v1/generate", request)
    found = await told(http, "/v1/chat/completions/derender", {"generate_response": generated, "chat_request": body})

    assert plain(found) == plain(expected)
    assert found["id"] == generated["request_id"]


async def test_a_chat_in_parts_may_be_truncated(http, engine):
    """Also one that is longer than the context without that."""
    writes(engine, TEXTS["text"])
    long = [{"role": "user", "content": "hi " * engine.max_model_len}]
    body = {"messages": long, "truncate_prompt_tokens": 9, "max_tokens": 5, "seed": 5}

    expected = await told(http, "/v1/chat/completions", body)
    request = await told(http, "/v1/chat/completions/render", body)
    generated = await told(http, "/inference/v1/generate", request)
    found = await told(http, "/v1/chat/completions/derender", {"generate_response": generated, "chat_request": body})

    assert plain(found) == plain(expected)
    assert found["usage"]["prompt_tokens"] == 9


@pytest.mark.parametrize("options", [{}, {"n": 2, "logprobs": 1}, {"stop": ["e"]}, {"max_tokens": 6, "return_token_ids": True}])
async def test_a_completion_in_parts_has_the_answer_of_the_completion(http, engine, options):
    writes(engine, TEXTS["unicode"])
    body = {"prompt": ["hi", "ho"], "seed": 5, "max_tokens": 60, **options}

    expected = await told(http, "/v1/completions", body)
    requests = await told(http, "/v1/completions/render", body)
    answers = [await told(http, "/inference/v1/generate", each) for each in requests]
    prompts = [each["token_ids"] for each in requests]
    given = {"generate_responses": answers, "completion_request": body, "prompt_token_ids": prompts}
    found = await told(http, "/v1/completions/derender", given)

    assert plain(found) == plain(expected)


@pytest.mark.parametrize("reason", ["abort", "stop", "length"])
async def test_a_choice_may_have_no_tokens(http, reason):
    """Such as one of a request that was aborted while it waited."""
    given = GIVEN | {"choices": [{"index": 0, "token_ids": [], "finish_reason": reason, "logprobs": {"content": []}}]}

    chat = await told(http, "/v1/chat/completions/derender", {"generate_response": given, "prompt_token_ids": [104]})
    text = await told(http, "/v1/completions/derender", {"generate_responses": [given]})

    assert (chat["choices"][0]["message"]["content"] or "", chat["choices"][0]["finish_reason"]) == ("", reason)
    assert (text["choices"][0]["text"], text["choices"][0]["finish_reason"]) == ("", reason)
    assert chat["usage"]["completion_tokens"] == text["usage"]["completion_tokens"] == 0


async def test_tokens_of_the_prompt_are_counted_or_told(http):
    chat = await told(http, "/v1/chat/completions/derender", {"generate_response": GIVEN, "prompt_token_ids": [104, 105, 106]})
    text = await told(http, "/v1/completions/derender", {"generate_responses": [GIVEN, GIVEN], "prompt_tokens": [4, 5]})

    assert chat["choices"][0]["message"]["content"] == "hi"
    assert chat["usage"]["prompt_tokens"] == 3
    assert [choice["text"] for choice in text["choices"]] == ["hi", "hi"]
    assert (text["usage"]["prompt_tokens"], text["usage"]["completion_tokens"]) == (9, 4)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("chat/completions", {"generate_response": GIVEN, "stream": True}, "generate_chunk"),
        ("completions", {"generate_responses": [GIVEN], "stream": True}, "generate_chunk"),
        ("chat/completions", {"generate_response": GIVEN}, "chat_request"),
        ("chat/completions", {"generate_response": GIVEN | {"choices": []}, "chat_request": {"messages": HI}}, None),
        ("completions", {"generate_responses": []}, "generate_responses"),
        ("completions", {"generate_responses": [GIVEN], "prompt_tokens": [1, 2]}, "prompt_tokens"),
        ("completions", {"generate_responses": [GIVEN], "prompt_tokens": [-1]}, "prompt_tokens.0"),
        ("completions", {"generate_responses": [GIVEN], "prompt_token_ids": []}, "prompt_token_ids"),
        ("chat/completions", {"generate_response": GIVEN, "prompt_token_ids": [300]}, "prompt_token_ids"),
        ("completions", {"generate_responses": [GIVEN | {"output_mode": "text"}]}, None),
        ("completions", {"generate_responses": [GIVEN | {"prompt_logprobs": [None, {}]}]}, "prompt_logprobs"),
        (
            "completions",
            {"generate_responses": [GIVEN | {"choices": [{"index": 0, "token_ids": [104], "finish_reason": "tool_calls"}]}]},
            None,
        ),
        (
            "completions",
            {"generate_responses": [GIVEN | {"choices": [{"index": 0, "token_ids": [300]}]}]},
            "generate_responses",
        ),
        (
            "completions",
            {"generate_responses": [GIVEN | {"choices": [{"index": 0, "token_ids": [104] * 513}]}]},
            "generate_responses",
        ),
        (
            "completions",
            {"generate_responses": [GIVEN | {"choices": [{"index": 0, "token_ids": [104], "logprobs": {"content": []}}]}]},
            "logprobs",
        ),
        ("completions", {"generate_responses": [GIVEN], "completion_request": {"prompt": "a", "echo": True}}, "echo"),
    ],
)
async def test_what_cannot_be_derendered_is_refused_with_its_field(http, path, body, field):
    answer = await http.post(f"/v1/{path}/derender", json=body)

    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field or (field is None and error["param"].startswith("generate_response"))
