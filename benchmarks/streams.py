"""Streams: many HTTP clients in one process, which only count events, so that the load generator takes little CPU time.

Each client is an asyncio protocol on a plain socket: it finds event boundaries in the received bytes and records the time.
soak.py and the load tests use it. It sends completions with `stream` only, and parses no JSON.
"""

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

_DONE = b"data: [DONE]\n\n"
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
_NO_CHOICE = re.compile(rb'"choices": ?\[\]')
_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from which one had all were they we "
    "who so said when more no if out up what about than into them can only other time new some could these two may first then"
)
_TAIL_BYTES = 1024
"""Number of last bytes that are kept: they contain the end mark, and the usage before it."""


# This is not `tetrad bench`'s client, which records no chunk sizes, cannot cancel, and starts its clock after connecting.
class StreamClient(asyncio.Protocol):
    """One streamed completion on a separate connection.

    Attributes:
        done: done when the connection is closed.
        started: done when the first chunk has been received, or the connection is closed.
        chunk_times_s: times of reads that had chunks, on the clock of time.perf_counter.
        chunk_sizes: number of chunks of each of these reads. The chunk that only has the usage is not counted.
        answered_s: seconds until the status line; None: no answer.
        total_s: seconds until the connection was closed.
        status: HTTP status; 0: no answer.
        error: description of the failure; "" if the stream ended normally.
    """

    def __init__(self, request: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self._request = request
        self._transport: asyncio.BaseTransport | None = None
        self.done: asyncio.Future[None] = loop.create_future()
        self.started: asyncio.Future[None] = loop.create_future()
        self._start = time.perf_counter()
        self._tail = b""
        self._is_complete = False
        self.chunk_times_s: list[float] = []
        self.chunk_sizes: list[int] = []
        self.answered_s: float | None = None
        self.total_s = 0.0
        self.status = 0
        self.error = ""

    @property
    def first_chunk_s(self) -> float | None:
        """Seconds until the first chunk; None: no chunk was received."""
        return self.chunk_times_s[0] - self._start if self.chunk_times_s else None

    @property
    def num_chunks(self) -> int:
        """Number of received chunks."""
        return sum(self.chunk_sizes)

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between consecutive reads of chunks."""
        return [later - earlier for earlier, later in itertools.pairwise(self.chunk_times_s)]

    @property
    def num_tokens(self) -> int | None:
        """Number of output tokens in the server's usage; None: the answer has no usage."""
        found = _USAGE.findall(self._tail)
        return int(found[-1]) if found else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = transport
        # uvloop's transports have the interface, not the class.
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        """Record the time and the number of received chunks."""
        now = time.perf_counter()
        if self.answered_s is None:
            self.answered_s = now - self._start
            self.status = int(data[9:12])
        num_chunks = data.count(b"data: {") - len(_NO_CHOICE.findall(data))
        if num_chunks > 0:
            if not self.chunk_times_s:
                self.started.set_result(None)
            self.chunk_times_s.append(now)
            self.chunk_sizes.append(num_chunks)
        if b'data: {"error"' in data:
            self.error = data[-300:].decode(errors="replace")
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self._is_complete = self._is_complete or _DONE in self._tail

    def connection_lost(self, exc: Exception | None) -> None:
        """Set the error, if any, and finish the futures."""
        self.total_s = time.perf_counter() - self._start
        if self.status == 200 and not self._is_complete and not self.error:
            self.error = f"cut off: {exc or 'closed'}"
        elif not self.status:
            self.error = f"no answer: {exc or 'closed'}"
        for future in (self.started, self.done):
            if not future.done():
                future.set_result(None)

    def leave(self) -> None:
        """Close the connection before the stream has ended; `done` is set soon after."""
        if self._transport is not None:
            self._transport.close()


def completion_request(url: str, body: Mapping[str, object]) -> bytes:
    """Return the bytes of an HTTP request for a streamed completion."""
    encoded = json.dumps({"stream": True, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(encoded)}\r\nConnection: close\r\n\r\n".encode() + encoded


def new_prompt(length: int) -> list[int]:
    """Return random ids that no prefix cache has."""
    return [random.randrange(1000, 41_000) for _ in range(length)]


def new_text(num_words: int) -> str:
    """Return words of about one token each, in an order that no prefix cache has."""
    return " ".join(random.choices(_WORDS.split(), k=num_words))


async def open_stream(url: str, body: Mapping[str, object]) -> StreamClient:
    """Send a request and return its client, whose `done` ends with the answer; see StreamClient."""
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    client = StreamClient(completion_request(url, body), loop)
    try:
        await loop.create_connection(lambda: client, address.hostname or "", address.port or 80)
    except OSError as error:
        client.error = f"no connection: {error}"
        client.done.set_result(None)
    return client


async def stream_once(url: str, body: Mapping[str, object]) -> StreamClient:
    """Run one request to its end and return its client; a failure is in its `error`."""
    client = await open_stream(url, body)
    await client.done
    return client
