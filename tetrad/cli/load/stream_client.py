"""StreamClient: sends one streamed request over its own connection, and records the arrival times of its parts.

An asyncio protocol that finds only the starts of events and parses nothing before the end, so that the client leaves the CPU
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
"""Matches events without tokens: those with the usage, the end of a chat's answer, or its role."""
_MESSAGE = re.compile(rb'"message": ?("(?:[^"\\]|\\.)*")')
# Enough bytes for the event with the usage and the end of the stream.
_TAIL_BYTES = 2048
_MAX_REASON_CHARS = 300


class StreamClient(asyncio.Protocol):
    """One request. Times are in seconds of the monotonic clock.

    Args:
        request: the encoded HTTP request, head and body.

    Attributes:
        done: set at the end of the connection.
        began_at: time of sending the request.
        arrived_at: arrival time of each piece with tokens; a piece may have the tokens of several steps.
        ended_at: time of the end of the connection.
        num_tokens, num_prompt_tokens: numbers of output and prompt tokens, as counted by the server.
        error: reason of a failure; empty if the request succeeded.
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
        cast("asyncio.Transport", transport).write(self._request)  # uvloop's transports have the interface, not the class

    def data_received(self, data: bytes) -> None:
        """Record the arrival of tokens."""
        now = time.monotonic()
        if not self._status:
            self._status = data[9:12]
        if data.count(_EVENT) > len(_WITHOUT_TOKENS.findall(data)):
            self.arrived_at.append(now)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the request, with its error if it failed."""
        self.ended_at = time.monotonic()
        self.num_tokens = self._counted(_COMPLETION_TOKENS)
        self.num_prompt_tokens = self._counted(_PROMPT_TOKENS)
        # The sender sets the error of a request that it ends at the time limit.
        self.error = self.error or self._problem(exc)
        if not self.done.done():
            self.done.set_result(None)

    def _problem(self, exc: Exception | None) -> str:
        if self._status != b"200":
            status = f"HTTP status {self._status.decode()}" if self._status else f"no answer ({exc or 'closed'})"
            return f"{status}: {self._reason()}"
        if _DONE not in self._tail or b'data: {"error"' in self._tail:
            return f"the stream was cut off: {self._reason()}"
        return ""

    def _counted(self, what: re.Pattern[bytes]) -> int:
        counted = what.findall(self._tail)
        return int(counted[-1]) if counted else 0

    def _reason(self) -> str:
        """Return the message of the server's error, or the shortened last line of the received body."""
        if found := _MESSAGE.findall(self._tail):
            return str(json.loads(found[-1]))
        lines = self._tail.rpartition(b"\r\n\r\n")[2].decode(errors="replace").strip().splitlines()
        return lines[-1][-_MAX_REASON_CHARS:] if lines else "no reason"
