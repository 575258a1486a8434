"""Generator: streams completions of random prompts from one server, a fixed number at a time, until all have ended."""

import asyncio
import json
import random
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tetrad.cli.load.draft_counts import DraftCounts
from tetrad.cli.load.stream_client import StreamClient

_TOKEN_IDS = range(300, 1000)
"""Plain tokens in every vocabulary there is. Two prompts of a block's length are never the same, so no prefix cache helps."""


@dataclass(frozen=True)
class Load:
    """The load to send.

    Args:
        url: of the server.
        model: that is asked for.
        concurrency: requests under way at the same time.
        num_requests: in all.
        input_len, output_len: tokens of each prompt and of each output.
        timeout_s: that one request may take.
        api_key: sent with every request. None: no key.
        trust: of an https URL. None: the connection is plain.
        seed: of the prompts.
    """

    url: str
    model: str
    concurrency: int
    num_requests: int
    input_len: int
    output_len: int
    timeout_s: float
    api_key: str | None = None
    trust: ssl.SSLContext | None = None
    seed: int = 0


@dataclass
class Measured:
    """The results of a load. Times in seconds of the monotonic clock."""

    load: Load
    began_at: float = 0.0
    ended_at: float = 0.0
    clients: list[StreamClient] = field(default_factory=list)
    drafts: DraftCounts = field(default_factory=DraftCounts)


async def run_load(load: Load) -> Measured:
    """Send the load; requests that fail are in the result with their errors."""
    measured = Measured(load, began_at=time.monotonic())
    requests = _requests(load)
    await asyncio.gather(*(_send_in_turn(load, requests, measured) for _ in range(load.concurrency)))
    measured.ended_at = time.monotonic()
    return measured


async def _send_in_turn(load: Load, requests: Iterator[bytes], measured: Measured) -> None:
    for request in requests:
        measured.clients.append(await _send(load, request))


async def _send(load: Load, request: bytes) -> StreamClient:
    address, loop = urlsplit(load.url), asyncio.get_running_loop()
    client = StreamClient(request)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        async with asyncio.timeout(load.timeout_s):
            transport, _ = await loop.create_connection(lambda: client, address.hostname or "", port, ssl=load.trust)
            try:
                await client.done
            finally:
                transport.abort()
    except TimeoutError:
        client.error = f"not answered within {load.timeout_s:g} s"
    except OSError as error:
        client.error = f"no connection: {error}"
    return client


def _requests(load: Load) -> Iterator[bytes]:
    """Yield the requests as they go over the wire."""
    numbers = random.Random(load.seed)
    key = f"Authorization: Bearer {load.api_key}\r\n" if load.api_key else ""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {urlsplit(load.url).netloc}\r\n{key}Content-Type: application/json\r\n"
    fields = {
        "model": load.model,
        "max_tokens": load.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for _ in range(load.num_requests):
        body = json.dumps({**fields, "prompt": numbers.choices(_TOKEN_IDS, k=load.input_len)})
        yield f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
