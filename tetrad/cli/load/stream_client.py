"""StreamClient: one streamed completion over its own connection, with the arrival times of its parts.

An asyncio protocol that finds the beginnings of events and parses nothing before the end, so that the client leaves the cores
to the server.
"""

import asyncio
import json
import re
import time
from typing import cast

_EVENT = b"data: {"
_DONE = b"data: [DONE]\n\n"
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens": ?(\d+)')
_WITHOUT_TOKENS = re.compile(rb'"choices": ?\[\]|"delta": ?\{\}|"content": ?""')
"""In an event that counts tokens, ends a chat's answer, or names its role."""
_MESSAGE = re.compile(rb'"message": ?("(?:[^"\\]|\\.)*")')
# Enough for the event that counts the tokens and what closes the stream.
_TAIL_BYTES = 2048
_MAX_REASON_CHARS = 300


class StreamClient(asyncio.Protocol):
    """One request. Times are of the monotonic clock, in seconds.

    Args:
        request: head and body, as they go over the wire.

    Attributes:
        done: set when the connection is over.
        began_at: when the request was sent.
        arrived_at: when each piece with tokens came; a piece may have those of several steps.
        ended_at: when the connection was over.
        num_tokens, num_prompt_tokens: of output and prompt, as the server counted them.
        error: what is wrong; empty if all is well.
    """

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self._status = b""
        self.done = asyncio.get_running_loop().create_future()
        self.began_at = self.ended_at = 0.0
        self.arrived_at: list[float] = []
        self.num_tokens = self.num_prompt_tokens = 0
        self.error = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self.began_at = time.monotonic()
        cast("asyncio.Transport", transport).write(self._request)  # uvloop's have the interface, not the class

    def data_received(self, data: bytes) -> None:
        """Note when tokens come."""
        now = time.monotonic()
        if not self._status:
            self._status = data[9:12]
        if data.count(_EVENT) > len(_WITHOUT_TOKENS.findall(data)):
            self.arrived_at.append(now)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note how it ended."""
        self.ended_at = time.monotonic()
        self.num_tokens = self._counted(_COMPLETION_TOKENS)
        self.num_prompt_tokens = self._counted(_PROMPT_TOKENS)
        if self._status != b"200":
            status = f"HTTP status {self._status.decode()}" if self._status else f"no answer ({exc or 'closed'})"
            self.error = f"{status}: {self._reason()}"
        elif _DONE not in self._tail or b'data: {"error"' in self._tail:
            self.error = f"the stream was cut off: {self._reason()}"
        if not self.done.done():
            self.done.set_result(None)

    def _counted(self, what: re.Pattern[bytes]) -> int:
        counted = what.findall(self._tail)
        return int(counted[-1]) if counted else 0

    def _reason(self) -> str:
        """Return the message of the server's error, or the last line of the body that it sent, cut."""
        if found := _MESSAGE.findall(self._tail):
            return str(json.loads(found[-1]))
        lines = self._tail.rpartition(b"\r\n\r\n")[2].decode(errors="replace").strip().splitlines()
        return lines[-1][-_MAX_REASON_CHARS:] if lines else "no reason"
