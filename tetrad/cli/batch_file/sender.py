"""Sender: sends the requests of a batch to a server's HTTP API, a bounded number at a time, and yields results.

A failure of one request is that request's result. A failure of all of them (no server for a minute) ends the run: the next run
sends the requests without a result. A request that is answered with 429 or 503 is sent again.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from tetrad.cli.batch_file.lines import BadLine, BatchRequest, Line
from tetrad.cli.batch_file.results import error_record, response_record
from tetrad.cli.http_client import httpx, unreachable
from tetrad.frontend.net.backoff import Backoff
from tetrad.services.errors import Unauthenticated, Unavailable

OnResult = Callable[[dict[str, Any]], None]
"""Takes a result, as OpenAI's batch output has it; called from the event loop."""

_OVERLOADED, _UNAVAILABLE = 429, 503
_LONGEST_RETRY_AFTER_S = 30.0
_MAX_LOST = 3


class BatchSender:
    """Sends to one server.

    Args:
        url: of the server.
        concurrency: requests that are under way at the same time.
        timeout_s: how long one may take.
        api_key: sent as a bearer token, if given.
        patience_s: how long a server may be away before the run ends.
        transport: how to reach it; TCP by default.
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int,
        timeout_s: float,
        api_key: str | None = None,
        patience_s: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        headers = {"content-type": "application/json"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        self._headers = headers
        self._transport = transport
        # Reading the certificates takes longer than a request, so it is done once.
        self._verify = httpx.create_ssl_context(trust_env=False)

    async def run(self, lines: Iterator[Line], on_result: OnResult) -> None:
        """Send every request, and give each line's result as soon as it is there.

        Raises:
            Unavailable: the server was away for too long. What has no result by then gets none.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(self._work(lines, on_result))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def check(self) -> None:
        """Return if the server answers and accepts the key; otherwise every request would fail.

        Raises:
            Unavailable: it does not answer.
            Unauthenticated: it wants another key.
        """
        try:
            async with self._new_client() as client:
                response = await client.get("/v1/models")
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error
        if response.status_code in (401, 403):
            raise Unauthenticated(f"The server at {self.url} refuses the key; give one with --api-key.")

    async def _work(self, lines: Iterator[Line], on_result: OnResult) -> None:
        """Take one line after the other from what all workers share."""
        async with self._new_client() as client:
            for line in lines:
                if isinstance(line, BadLine):
                    on_result(error_record(line, line.code, line.message))
                else:
                    on_result(await self._send(client, line))

    def _new_client(self) -> httpx.AsyncClient:
        """Return a client for one worker: in a pool that all share, each request would look at every connection."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers=self._headers,
            timeout=httpx.Timeout(self._timeout_s, connect=5.0),
            limits=httpx.Limits(max_connections=1),
            verify=self._verify,
            trust_env=False,
            transport=self._transport,
        )

    async def _send(self, client: httpx.AsyncClient, request: BatchRequest) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        content = json.dumps(request.body).encode()
        backoff, away_since, num_lost = Backoff(), loop.time(), 0
        while True:
            try:
                return await self._attempt(client, request, content)
            except _LaterError as later:
                if later.was_there:
                    away_since = loop.time()
                num_lost += later.lost
                if num_lost > _MAX_LOST:
                    # If this request kills the server, the others must not wait for ever.
                    text = f"The connection was lost {num_lost} times ({later.reason})."
                    return error_record(request, "connection_lost", text)
                if loop.time() - away_since > self._patience_s:
                    text = f"The server at {self.url} has been away for {self._patience_s:g} s ({later.reason});"
                    raise Unavailable(f"{text} run the same command again to go on.") from later
                await asyncio.sleep(later.retry_after_s)
            await backoff.wait()

    async def _attempt(self, client: httpx.AsyncClient, request: BatchRequest, content: bytes) -> dict[str, Any]:
        """Return the result; _LaterError if it is worth asking again."""
        try:
            response = await client.post(request.url, content=content)
        except httpx.ReadTimeout:
            return error_record(request, "request_timeout", f"There was no answer within {self._timeout_s:g} s.")
        except httpx.TransportError as error:
            lost = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise _LaterError(str(error) or type(error).__name__, was_there=lost, lost=lost) from error
        if response.status_code in (_OVERLOADED, _UNAVAILABLE):
            overloaded = response.status_code == _OVERLOADED
            retry_after_s = _retry_after_s(response) if overloaded else 0.0
            raise _LaterError(f"status {response.status_code}", was_there=overloaded, retry_after_s=retry_after_s)
        return _record_of(request, response)


class _LaterError(Exception):
    """The server cannot answer now.

    Args:
        reason: for people.
        was_there: it was reached, so it is not away.
        lost: it broke off.
        retry_after_s: it says when to come back.
    """

    def __init__(self, reason: str, *, was_there: bool, lost: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_there = was_there
        self.lost = lost
        self.retry_after_s = retry_after_s


def _record_of(request: BatchRequest, response: httpx.Response) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        body = response.json()
        if isinstance(body, dict):
            request_id = response.headers.get("x-request-id", "")
            return response_record(request, status_code=response.status_code, request_id=request_id, body=body)
    text = f"The server answered with status {response.status_code} and no JSON object."
    return error_record(request, "invalid_response", text)


def _retry_after_s(response: httpx.Response) -> float:
    with contextlib.suppress(ValueError):
        return min(max(float(response.headers.get("retry-after", "")), 0.0), _LONGEST_RETRY_AFTER_S)
    return 0.0
