"""Client: sends one request as a well-behaved client does, and records the answer.

Retries in two cases only: the frontend it talked to was killed, or a response could not be kept because the disk failed. Any
other broken connection, status or error event is a lost request, unless the request expects an error. Reports when tokens
arrive; knows nothing of other faults.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.chaos.answers import Answer
from tests.chaos.catalogue import RESPONSES, Request
from tests.chaos.outage import Outage

_RETRY_PAUSE_S = 0.1


@dataclass
class Outcome:
    """What came of one request.

    Attributes:
        request: that was asked.
        answer: of the last attempt, as far as it came.
        abandoned: what earlier attempts had brought when the frontend was killed.
        error: why there is no whole answer; None: it ended as it should, or the client left.
        left: the client hung up.
        took_s: from the first attempt to the end.
    """

    request: Request
    answer: Answer = field(default_factory=Answer)
    abandoned: list[Answer] = field(default_factory=list)
    error: str | None = None
    left: bool = False
    took_s: float = 0.0

    @property
    def num_retries(self) -> int:
        """Attempts besides the first."""
        return len(self.abandoned)


class Refused(Exception):
    """The server answered with an error."""


class _Starting(httpx.TransportError):
    """A frontend is there that does not take requests yet, and says so: like a connection refused, and excused like one."""


class _NotKept(httpx.TransportError):
    """The frontend cannot keep a response, and says so; excused while its disk fails."""


class Client:
    """Asks requests.

    Args:
        url: of the frontend.
        lives: when the frontend was dead after a kill.
        on_tokens: called with the number of the request whenever a piece of its stream brought something.
        timeout_s: after which an answer counts as lost.
        news_timeout_s: how long the news of a death may take behind the connection that it broke.
        silence_timeout_s: after which a connection that brings nothing counts as broken; None: as long as an answer may take.
        disk: when the frontend's disk failed; None: it never did.
    """

    def __init__(
        self,
        url: str,
        lives: Outage,
        *,
        on_tokens: Callable[[int], None],
        timeout_s: float,
        news_timeout_s: float = 5.0,
        silence_timeout_s: float | None = None,
        disk: Outage | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self._lives, self._disk, self._on_tokens = lives, disk or Outage(), on_tokens
        self._news_timeout_s = news_timeout_s
        self._numbers = itertools.count()
        # No connection is kept: one that the server closes while the next request is on its way proves nothing.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        timeouts = httpx.Timeout(None, read=silence_timeout_s)
        self._http = httpx.AsyncClient(base_url=url, limits=limits, timeout=timeouts)

    async def close(self) -> None:
        """Close what is open."""
        await self._http.aclose()

    async def ask(self, request: Request, *, leave_after: int | None = None) -> Outcome:
        """Ask until there is an answer or no excuse.

        Args:
            request: to ask.
            leave_after: hang up after so many characters and tokens; of a whole answer, after so many hundredths of a second.
        """
        outcome, started_at, number = Outcome(request), time.monotonic(), next(self._numbers)
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    if await self._attempt(outcome, leave_after, number):
                        break
                    await asyncio.sleep(_RETRY_PAUSE_S)
        except TimeoutError:
            outcome.error = f"no answer within {self.timeout_s:g} s"
        except (Refused, httpx.HTTPError, ValueError, LookupError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.took_s = time.monotonic() - started_at
        return outcome

    async def _attempt(self, outcome: Outcome, leave_after: int | None, number: int) -> bool:
        """Ask once; return whether that was enough."""
        started_at = time.monotonic()
        outcome.answer = Answer()
        try:
            if outcome.request.streams:
                await self._stream(outcome, leave_after, number)
            else:
                await self._whole(outcome, leave_after)
        except httpx.TransportError as error:
            excuse = self._disk if isinstance(error, _NotKept) else self._lives
            if not await excuse.was_since(started_at, timeout_s=self._news_timeout_s):
                raise
            outcome.abandoned.append(outcome.answer)
            return False
        return True

    async def _whole(self, outcome: Outcome, leave_after: int | None) -> None:
        request = outcome.request
        try:
            async with asyncio.timeout(None if leave_after is None else leave_after / 100):
                response = await self._http.post(request.path, **request.content(), headers=dict(request.headers))
        except TimeoutError:
            outcome.left = True
            return
        if response.status_code != 200:
            _refuse(outcome, response.status_code, response.text)
            return
        is_text = response.headers.get("content-type", "").startswith("text/")
        body = {"text": response.text} if is_text else response.json()
        if request.path == RESPONSES:
            await self._check_kept(body)
        outcome.answer.add(body)
        outcome.answer.endings = 1

    async def _check_kept(self, body: dict[str, Any]) -> None:
        kept = await self._http.get(f"{RESPONSES}/{body['id']}")
        if kept.status_code != 200:
            raise _refusal(RESPONSES, kept.status_code, kept.text)
        if kept.json() != body:
            raise Refused(f"what was kept is not what was answered: {kept.text[:500]}")

    async def _stream(self, outcome: Outcome, leave_after: int | None, number: int) -> None:
        request, seen = outcome.request, 0
        async with self._http.stream("POST", request.path, **request.content(), headers=dict(request.headers)) as response:
            if response.status_code != 200:
                _refuse(outcome, response.status_code, (await response.aread()).decode(errors="replace"))
                return
            async for data in _events(response):
                if data == "[DONE]":
                    outcome.answer.endings += 1
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    if not request.fails:
                        raise Refused(f"error event: {data[:500]}")
                    outcome.answer.error = chunk["error"]["message"]
                    continue
                brought = outcome.answer.add(chunk)
                if brought:
                    self._on_tokens(number)
                seen += brought
                if leave_after is not None and seen >= leave_after:
                    outcome.left = True
                    return


def _refuse(outcome: Outcome, status: int, text: str) -> None:
    """Take an error as the answer if the request expects one; raise it otherwise."""
    refusal = _refusal(outcome.request.path, status, text)
    if not outcome.request.fails or isinstance(refusal, _Starting):
        raise refusal
    outcome.answer.error, outcome.answer.endings = json.loads(text)["error"]["message"], 1


def _refusal(path: str, status: int, text: str) -> Exception:
    if status == 503 and '"code":"starting"' in text:
        return _Starting(text)
    return _NotKept(text) if status == 503 and path == RESPONSES else Refused(f"{status} {text[:500]}")


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the data of each event; comments are skipped."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
