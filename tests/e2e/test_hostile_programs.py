"""Untrusted programs in many requests at once, chat templates and grammars: plain requests are answered as usual."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

NUM_TEMPLATES = 12
ENDLESS = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
MESSAGES = [{"role": "user", "content": "Hello"}]


def deep_schema(depth: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def hostile_bodies(kind: str) -> list[tuple[str, dict]]:
    """Return paths and bodies, no two alike: what is known to be bad is not tried twice."""
    if kind == "templates":
        chats = [{"messages": MESSAGES, "max_tokens": 4, "chat_template": f"{ENDLESS}{i}"} for i in range(NUM_TEMPLATES)]
        return [("/v1/chat/completions", body) for body in chats]
    programs = [
        *({"structured_outputs": {"regex": "(" * i + "(a|b)*a" + f"(a|b){{{500 + i}}}" + ")" * i}} for i in range(7)),
        *({"structured_outputs": {"json": deep_schema(60 + i)}} for i in range(7)),
        *({"structured_outputs": {"grammar": "start: " + "(" * (3000 + i) + '"a"' + ")" * (3000 + i)}} for i in range(6)),
    ]
    return [("/v1/completions", {"prompt": "Hello", "max_tokens": 4, **program}) for program in programs]


def num_prompt_tokens(server, **fields) -> int:
    body = {"messages": MESSAGES, "max_tokens": 1, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30).json()["usage"]["prompt_tokens"]


@pytest.fixture(scope="module")
def stack(start_module_server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_TOKENIZER_CHAT_TEMPLATE_TIMEOUT_S", "1")
        return start_module_server("--device", "sim")


@pytest.mark.parametrize("kind", ["templates", "grammars"])
def test_many_hostile_programs_at_once_stop_no_plain_request(stack, kind):
    assert num_prompt_tokens(stack, chat_template="Hello") == 1  # what a request brings is what is rendered
    plain = {"prompt": "Hello", "max_tokens": 4, "seed": 3}
    expected = httpx.post(f"{stack.url}/v1/completions", json=plain).json()["choices"]

    hostile = hostile_bodies(kind)
    with ThreadPoolExecutor(len(hostile)) as threads:
        sent = [threads.submit(httpx.post, f"{stack.url}{path}", json=body, timeout=90) for path, body in hostile]
        times = []
        for _ in range(10):
            began = time.monotonic()
            answer = httpx.post(f"{stack.url}/v1/completions", json=plain, timeout=30)
            assert answer.json()["choices"] == expected
            times.append(time.monotonic() - began)
        for process in stack.processes():
            assert process.is_running()
        answers = [future.result() for future in sent]

    assert sorted(times)[5] < 1, times
    if kind == "templates":
        check_refusals(answers)
    else:
        assert {answer.status_code for answer in answers} == {200, 400}


def check_refusals(answers: list[httpx.Response]) -> None:
    """Each template was tried and ran out of its time, or found the queue of renderers full."""
    errors = [answer.json()["error"] for answer in answers]
    refused = [error for answer, error in zip(answers, errors, strict=True) if answer.status_code == 429]
    timed_out = [error for answer, error in zip(answers, errors, strict=True) if answer.status_code == 400]
    assert len(refused) + len(timed_out) == NUM_TEMPLATES
    assert timed_out
    assert all("are being rendered, the limit" in error["message"] for error in refused)
    assert all("took longer than 1 s" in error["message"] and error["param"] == "chat_template" for error in timed_out)
