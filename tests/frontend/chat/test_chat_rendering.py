"""The fields of a chat completion that reach the template and the detokenizer, and `echo`."""

import json

import pytest

from tests.frontend.chat.asking import MESSAGES, TOOLS, added_up, ask, stream
from tests.frontend.turns import writes


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/render"])
async def test_a_conversation_that_is_truncated_may_be_longer_than_fits(http, tokenizer, path):
    """Its tokens count after truncation, as those of a completion's text."""
    body = {"messages": [{"role": "user", "content": "x" * 65_537}], "max_tokens": 1}
    refused = await http.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
    assert tokenizer.rendered == []

    answer = await http.post(path, json=body | {"truncate_prompt_tokens": 3})

    assert answer.status_code == 200, answer.text
    [rendered] = tokenizer.rendered
    assert not rendered.HasField("max_prompt_chars")


async def test_reasoning_effort_reaches_the_template(http, tokenizer):
    body = {"messages": MESSAGES, "max_tokens": 1, "reasoning_effort": "low", "chat_template_kwargs": {"mood": "glad"}}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

    kwargs = json.loads(tokenizer.rendered[-1].chat_template_kwargs_json)
    assert (kwargs["mood"], kwargs["reasoning_effort"]) == ("glad", "low")


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("low", True)])
async def test_reasoning_effort_switches_thinking(http, tokenizer, effort, thinks):
    body = {"messages": MESSAGES, "max_tokens": 1, "reasoning_effort": effort}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

    kwargs = json.loads(tokenizer.rendered[-1].chat_template_kwargs_json)
    assert (kwargs["enable_thinking"], kwargs["thinking"]) == (thinks, thinks)


async def test_thinking_that_the_client_has_switched_stays_so(http, tokenizer):
    body = {"messages": MESSAGES, "max_tokens": 1, "reasoning_effort": "low", "chat_template_kwargs": {"thinking": False}}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

    kwargs = json.loads(tokenizer.rendered[-1].chat_template_kwargs_json)
    assert kwargs == {"reasoning_effort": "low", "thinking": False}


@pytest.mark.parametrize(
    ("body", "kwargs"),
    [
        ({}, {"enable_thinking": False, "mood": "sad"}),
        ({"chat_template_kwargs": {"mood": "glad"}}, {"enable_thinking": False, "mood": "glad"}),
        (
            {"reasoning_effort": "low"},
            {"enable_thinking": True, "thinking": True, "reasoning_effort": "low", "mood": "sad"},
        ),
    ],
    ids=["neither", "a variable", "thinking"],
)
async def test_the_servers_variables_hold_for_requests_that_do_not_set_them(serve_frontend, tokenizer, body, kwargs):
    defaults = '{"enable_thinking": false, "mood": "sad"}'
    async with serve_frontend(default_chat_template_kwargs=defaults) as frontend:
        await ask(frontend, max_tokens=1, **body)

    assert json.loads(tokenizer.rendered[-1].chat_template_kwargs_json) == kwargs


async def test_the_rendered_conversation_is_returned_on_request(frontend):
    whole = await ask(frontend, max_tokens=2, return_prompt_text=True)
    chunks = await stream(frontend, max_tokens=2, return_prompt_text=True)
    unasked = await ask(frontend, max_tokens=2)

    prompt = whole["prompt_text"]
    assert list(prompt.encode()) == (await ask(frontend, max_tokens=2, return_token_ids=True))["prompt_token_ids"]
    assert [chunk.get("prompt_text") for chunk in chunks] == [prompt] + [None] * (len(chunks) - 1)
    assert "prompt_text" not in unasked


async def test_tools_reach_the_template_unless_there_is_no_choice(http, tokenizer):
    for choice, seen in (("auto", True), ("none", False)):
        body = {"messages": MESSAGES, "max_tokens": 1, "tools": TOOLS, "tool_choice": choice}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

        assert bool(tokenizer.rendered[-1].tools_json) is seen


@pytest.mark.parametrize("content", ["Once", [{"type": "text", "text": "Once"}]])
async def test_echo_begins_with_the_message_that_is_continued(frontend, engine, content):
    writes(engine, " upon")
    body = {"messages": [*MESSAGES, {"role": "assistant", "content": content}], "continue_final_message": True, "echo": True}

    whole = await ask(frontend, **body)
    chunks = await stream(frontend, **body)

    assert whole["choices"][0]["message"]["content"] == added_up(chunks)[0]["content"] == "Once upon"
    assert whole["usage"]["completion_tokens"] == len(" upon") + 1


async def test_echo_of_what_others_said_is_nothing(frontend, engine):
    writes(engine, "yes")

    assert (await ask(frontend, echo=True))["choices"][0]["message"]["content"] == "yes"


async def test_special_tokens_are_kept_where_marks_are_made_of_them(serve_frontend, engine, tokenizer):
    writes(engine, "<|channel|>final<|message|>yes")
    async with serve_frontend(tool_call_parser="openai") as frontend:
        await ask(frontend)
    async with serve_frontend(tool_call_parser="mistral") as frontend:
        await ask(frontend)
        await ask(frontend, tools=TOOLS)

    assert [opened.skip_special_tokens for opened in tokenizer.opened] == [False, True, False]
