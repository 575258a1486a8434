"""Programs of strangers in requests, many at once: chat templates and grammars. Plain requests are answered as ever."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

NUM_HOSTILE = 20
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
        chats = [{"messages": MESSAGES, "max_tokens": 4, "chat_template": f"{ENDLESS}{i}"} for i in range(NUM_HOSTILE)]
        return [("/v1/chat/completions", body) for body in chats]
    programs = [
        *({"structured_outputs": {"regex": "(" * i + "(a|b)*a" + f"(a|b){{{500 + i}}}" + ")" * i}} for i in range(7)),
        *({"structured_outputs": {"json": deep_schema(60 + i)}} for i in range(7)),
        *({"structured_outputs": {"grammar": "start: " + "(" * (3000 + i) + '"a"' + ")" * (3000 + i)}} for i in range(6)),
    ]
    return [("/v1/completions", {"prompt": "Hello", "max_tokens": 4, **program}) for program in programs]


@pytest.mark.parametrize("kind", ["templates", "grammars"])
def test_many_hostile_programs_at_once_stop_no_plain_request(start_server, kind):
    server = start_server("--device", "sim").wait_ready()
    plain = {"prompt": "Hello", "max_tokens": 4, "seed": 3}
    expected = httpx.post(f"{server.url}/v1/completions", json=plain).json()["choices"]

    with ThreadPoolExecutor(NUM_HOSTILE) as threads:
        sent = [threads.submit(httpx.post, f"{server.url}{path}", json=body, timeout=90) for path, body in hostile_bodies(kind)]
        times = []
        for _ in range(10):
            began = time.monotonic()
            answer = httpx.post(f"{server.url}/v1/completions", json=plain, timeout=30)
            assert answer.json()["choices"] == expected
            times.append(time.monotonic() - began)
        for process in server.processes():
            assert process.is_running()
        if kind == "grammars":
            statuses = [future.result().status_code for future in sent]
            assert all(status < 500 for status in statuses), statuses
        server.stop()

    assert sorted(times)[5] < 1, times
