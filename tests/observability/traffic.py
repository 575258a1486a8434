"""Traffic for all metrics: each API, constraints, a shared prefix, images, and refused requests."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.pictures import picture

_PREFIX = "Once upon a time there was a fox who lived in a wood beside a lake. " * 8
_CHAT = {"messages": [{"role": "user", "content": "Tell me of the fox."}], "max_tokens": 16}
_CHOICE = {"structured_outputs": {"choice": ["yes", "no"]}}


def _bodies(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and body of each request of a round."""
    for index in range(8):
        body = {"prompt": f"{_PREFIX}{number} {index}", "max_tokens": 24, "ignore_eos": True, "n": 1 + index % 2}
        yield "/v1/completions", body
    yield "/v1/chat/completions", _CHAT | {"stream": True}
    yield "/v1/chat/completions", _CHAT | _CHOICE
    yield "/v1/chat/completions", _CHAT | {"structured_outputs": {"regex": f"fox{number}[a-z]*"}}
    yield "/v1/chat/completions", _CHAT | {"structured_outputs": {"regex": "["}}
    for seed in (0, number + 1):
        image = {"url": f"data:image/png;base64,{base64.b64encode(picture(56, 56, seed)).decode()}"}
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": image}]}]
        yield "/v1/chat/completions", _CHAT | {"messages": messages}
    yield "/v1/completions", {"prompt": "word " * 30_000}
    yield "/tokenize", {"prompt": "a fox"}
    yield "/v1/nothing", {}


def send_round(url: str, number: int) -> list[int]:
    """Send one of each, all at once; return their statuses."""

    def send(request: tuple[str, dict[str, Any]]) -> int:
        path, body = request
        return client.post(path, json=body).status_code

    # trust_env: pytest writes to the environment while another thread would read its proxies.
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client, ThreadPoolExecutor(16) as pool:
        return list(pool.map(send, _bodies(number)))
