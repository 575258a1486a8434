"""Streams: many HTTP clients in one process that only count events, so that the load generator costs little.

Each client is an asyncio protocol on a plain socket: it finds event boundaries in the received bytes and records the time.
Used by soak.py and by the tests of load. Knows completions with `stream`; parses no JSON.
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
"""Kept of what came last: the end mark, and the usage before it."""


# Not `tetrad bench`'s client: that one has no use for sizes of chunks and for leaving, and its clock starts once connected.
class StreamClient(asyncio.Protocol):
    """One streamed completion on a connection of its own.

    Attributes:
        done: the connection was closed.
        started: the first chunk has come, or none will.
        chunk_times_s: when chunks were read, on the clock of time.perf_counter; several that came together are one.
        chunk_sizes: how many came then. The one that only carries the usage is none.
        answered_s: until the status line came; None: none came.
        total_s: until the connection was closed.
        status: of HTTP; 0: none came.
        error: what is wrong; "" if the stream ended as it should.
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
        """Seconds until the first chunk came; None: none came."""
        return self.chunk_times_s[0] - self._start if self.chunk_times_s else None

    @property
    def num_chunks(self) -> int:
        """Chunks that came."""
        return sum(self.chunk_sizes)

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between chunks."""
        return [later - earlier for earlier, later in itertools.pairwise(self.chunk_times_s)]

    @property
    def num_tokens(self) -> int | None:
        """Output tokens as the server counts them; None: the request did not ask for usage, or no answer came."""
        found = _USAGE.findall(self._tail)
        return int(found[-1]) if found else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = transport
        # uvloop's transports have the interface, not the class.
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note when chunks come."""
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
        """Say how it ended."""
        self.total_s = time.perf_counter() - self._start
        if self.status == 200 and not self._is_complete and not self.error:
            self.error = f"cut off: {exc or 'closed'}"
        elif not self.status:
            self.error = f"no answer: {exc or 'closed'}"
        for future in (self.started, self.done):
            if not future.done():
                future.set_result(None)

    def leave(self) -> None:
        """Close the connection, whatever is still to come; `done` follows."""
        if self._transport is not None:
            self._transport.close()


def completion_request(url: str, body: Mapping[str, object]) -> bytes:
    """Return a streamed completion as it goes over the wire."""
    encoded = json.dumps({"stream": True, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(encoded)}\r\nConnection: close\r\n\r\n".encode() + encoded


def new_prompt(length: int) -> list[int]:
    """Return ids that no prefix cache knows."""
    return [random.randrange(1000, 41_000) for _ in range(length)]


def new_text(num_words: int) -> str:
    """Return words, about a token each, in an order that no prefix cache knows."""
    return " ".join(random.choices(_WORDS.split(), k=num_words))


async def open_stream(url: str, body: Mapping[str, object]) -> StreamClient:
    """Send a request and return its client; its `done` says that the answer has ended, its `error` what went wrong."""
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
    """Run one client to its end; what went wrong is in its `error`."""
    client = await open_stream(url, body)
    await client.done
    return client
