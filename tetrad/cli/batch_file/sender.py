"""Sender: sends the requests of a batch to a server's HTTP API, a limited number at a time, and reports results.

A failure of one request is the result of this request. If no server answers for a minute, the run ends; the next run sends the
requests without a result. A request that is answered with 429 or 503 is sent again.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tetrad.cli.batch_file.contents import BadContentError, Content, content_of, fetched
from tetrad.cli.batch_file.lines import BadLine, BatchRequest, Line
from tetrad.cli.batch_file.results import PASSING_STATUS, error_record, response_record
from tetrad.cli.http_client import authorization, base_url, httpx, trust_of, unreachable
from tetrad.frontend.net.backoff import Backoff
from tetrad.services.errors import Unauthenticated, Unavailable

OnResult = Callable[[dict[str, Any]], None]
"""Receives a result in the form of OpenAI's batch output; called from the event loop."""

_OVERLOADED, _UNAVAILABLE = 429, 503
_LONGEST_RETRY_AFTER_S = 30.0
_MAX_LOST = 3


class BatchSender:
    """Sends the requests of a batch to one server.

    Args:
        url: URL of the server.
        concurrency: maximum number of requests in flight.
        timeout_s: maximum seconds of a request.
        api_key: sent as a bearer token, if given.
        ca_file: certificate authorities to trust for an https URL. None: the system's.
        patience_s: maximum seconds without an answering server before the run ends.
        transport: transport to the server; None: TCP.
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int,
        timeout_s: float,
        api_key: str | None = None,
        ca_file: Path | None = None,
        patience_s: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = base_url(url)
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._headers = authorization(api_key)
        self._transport = transport
        # Certificates are read once, because this takes longer than a request.
        self._verify = trust_of(ca_file)

    async def run(self, lines: Iterator[Line], on_result: OnResult) -> None:
        """Send all requests, and pass each line's result to `on_result` as soon as it exists.

        Raises:
            Unavailable: the server was unreachable for too long. The remaining lines get no result.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(self._work(lines, on_result))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def check(self) -> None:
        """Check that the server answers and accepts the key; otherwise every request would fail.

        Raises:
            Unavailable: the server does not answer.
            Unauthenticated: the server refuses the key.
        """
        try:
            async with self._new_client() as client:
                response = await client.get("/v1/models")
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error
        if response.status_code in (401, 403):
            raise Unauthenticated(f"The server at {self.url} refuses the key; give one with --api-key.")

    async def _work(self, lines: Iterator[Line], on_result: OnResult) -> None:
        """Process one line after the other from the iterator that all workers share."""
        async with self._new_client() as client:
            for line in lines:
                if isinstance(line, BadLine):
                    on_result(error_record(line, line.code, line.message))
                else:
                    on_result(await self._send(client, line))

    def _new_client(self) -> httpx.AsyncClient:
        """Return a client for one worker: in a shared connection pool, each request would check every connection."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers=self._headers,
            timeout=httpx.Timeout(self._timeout_s, connect=5.0),
            limits=httpx.Limits(max_connections=1),
            verify=self._verify,
            trust_env=False,
            transport=self._transport,
        )

    async def _fetch(self, url: str) -> bytes:
        """Return a recording; the server's key is not sent."""
        async with httpx.AsyncClient(
            verify=self._verify, timeout=self._timeout_s, transport=self._transport, trust_env=False
        ) as client:
            return await fetched(client, url)

    async def _send(self, client: httpx.AsyncClient, request: BatchRequest) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        try:
            content = await content_of(request, self._fetch)
        except BadContentError as error:
            return error_record(request, "invalid_file", str(error))
        backoff, num_lost = Backoff(), 0
        # Time of the first failure since the server was reached last; the duration of an attempt does not count.
        away_since: float | None = None
        while True:
            try:
                return await self._attempt(client, request, content)
            except _LaterError as later:
                now = loop.time()
                if later.was_there or away_since is None:
                    away_since = now
                num_lost += later.lost
                if num_lost > _MAX_LOST:
                    # This request may be what crashes the server: the others must not wait for ever.
                    text = f"The connection was lost {num_lost} times ({later.reason})."
                    return error_record(request, "connection_lost", text)
                if now - away_since > self._patience_s:
                    text = f"The server at {self.url} has been away for {self._patience_s:g} s ({later.reason});"
                    raise Unavailable(f"{text} run the same command again to go on.") from later
                await asyncio.sleep(later.retry_after_s)
            await backoff.wait()

    async def _attempt(self, client: httpx.AsyncClient, request: BatchRequest, content: Content) -> dict[str, Any]:
        """Send a request once and return its result; _LaterError if it should be sent again."""
        try:
            data, media_type = content
            response = await client.post(request.url, content=data, headers={"content-type": media_type})
        except httpx.ReadTimeout:
            return error_record(request, "request_timeout", f"There was no answer within {self._timeout_s:g} s.")
        except httpx.DecodingError as error:
            return error_record(request, "invalid_response", f"The server's answer cannot be decoded: {error}.")
        except httpx.TransportError as error:
            lost = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise _LaterError(str(error) or type(error).__name__, was_there=lost, lost=lost) from error
        if response.status_code in (_OVERLOADED, _UNAVAILABLE):
            overloaded = response.status_code == _OVERLOADED
            retry_after_s = _retry_after_s(response) if overloaded else 0.0
            raise _LaterError(f"status {response.status_code}", was_there=overloaded, retry_after_s=retry_after_s)
        return _record_of(request, response)


class _LaterError(Exception):
    """The server cannot answer now, and the request should be sent again.

    Args:
        reason: the reason, for messages.
        was_there: whether the server was reached.
        lost: whether the connection broke.
        retry_after_s: seconds to wait, as the server requests.
    """

    def __init__(self, reason: str, *, was_there: bool, lost: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_there = was_there
        self.lost = lost
        self.retry_after_s = retry_after_s


def _record_of(request: BatchRequest, response: httpx.Response) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        body = response.json()
        if isinstance(body, dict):
            request_id = response.headers.get("x-request-id", "")
            return response_record(request, status_code=response.status_code, request_id=request_id, body=body)
    text = f"The server answered with status {response.status_code} and no JSON object."
    # A proxy answers in HTML when the server behind it does not answer.
    code = "unavailable" if response.status_code in PASSING_STATUS else "invalid_response"
    return error_record(request, code, text)


def _retry_after_s(response: httpx.Response) -> float:
    with contextlib.suppress(ValueError):
        wait_s = float(response.headers.get("retry-after", ""))
        return 0.0 if math.isnan(wait_s) else min(max(wait_s, 0.0), _LONGEST_RETRY_AFTER_S)
    return 0.0
