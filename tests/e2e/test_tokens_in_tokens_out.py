"""Tokens in, tokens out on the real model: a rendered request gives the tokens of the request itself."""

import json
import subprocess
import sys

import httpx
import pytest

from tests.documents import Page

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": WEATHER}}]
CHAT = {"messages": [{"role": "user", "content": "How is the weather in Paris?"}], "seed": 7, "return_token_ids": True}


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as opened:
        yield opened


def told(http, path, body):
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("options", [{"temperature": 1.5, "max_tokens": 12}, {"tools": TOOLS, "tool_choice": "required"}])
def test_a_chat_in_parts_has_the_tokens_and_the_answer_of_the_chat(http, options):
    [expected] = told(http, "/v1/chat/completions", CHAT | options)["choices"]

    request = told(http, "/v1/chat/completions/render", CHAT | options)
    answer = told(http, "/inference/v1/generate", request)
    body = {"generate_response": answer, "chat_request": CHAT | options}
    [found] = told(http, "/v1/chat/completions/derender", body)["choices"]

    assert answer["choices"][0]["token_ids"] == expected["token_ids"]
    for message in (found["message"], expected["message"]):
        for call in message.get("tool_calls", ()):
            del call["id"]
    assert found == expected


def test_a_stream_as_text_gives_the_text_of_the_completion(http):
    body = {
        "prompt": "The capital of France is",
        "max_tokens": 12,
        "seed": 7,
        "temperature": 1.5,
        "stop": ["e"],
        "stream": True,
    }
    expected = told(http, "/v1/completions", body | {"stream": False})["choices"][0]

    [request] = told(http, "/v1/completions/render", body)
    answer = http.post("/inference/v1/generate", json=request | {"output_mode": "text"})
    chunks = [json.loads(line[6:])["choices"][0] for line in answer.text.splitlines() if line.startswith("data: {")]

    assert "".join(each["text"] for each in chunks) == expected["text"]
    assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == (expected["finish_reason"], expected["stop_reason"])


@pytest.mark.parametrize(("part", "start"), [("generate_response", "["), ("generate_chunk", "")])
def test_the_examples_of_the_page_run(server, part, start):
    code = Page.of("docs/clients.md").block(part, language="python")
    code = code.replace("http://127.0.0.1:8000", server.url)

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stdout.startswith(start)


def test_a_derendered_stream_is_the_stream_of_the_chat(http):
    body = CHAT | {"max_tokens": 24, "temperature": 1.5, "stream": True}
    body |= {"messages": [{"role": "user", "content": "Write 你好 and 👩‍👩‍👧."}]}

    expected = chunks_of(http.post("/v1/chat/completions", json=body))
    generated = chunks_of(http.post("/inference/v1/generate", json=told(http, "/v1/chat/completions/render", body)))
    found, state = [], None
    for chunk in generated:
        part = {"stream": True, "generate_chunk": chunk, "stream_state": state, "chat_request": body}
        answer = told(http, "/v1/chat/completions/derender", part)
        found.append(answer["chunk"])
        state = answer["stream_state"]

    assert text_of(found) == text_of(expected)
    assert found[-1]["choices"][0]["finish_reason"] == expected[-1]["choices"][0]["finish_reason"]


def chunks_of(answer):
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def text_of(chunks):
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
