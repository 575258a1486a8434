"""Clients that do not wait for their answers: they go away in the midst of a stream, or their time is over."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import grpc
import httpx

from tests.combinations import grpc_bodies
from tests.combinations.asked import BodyCall, Client, LibraryCall, TurnCall
from tests.combinations.drawing import Drawing
from tests.combinations.speech import SpeechCall
from tetrad.frontend.request.deadlines import deadline_after
from tetrad.services.errors import TetradError

_FAILURES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
_NEVER_STARTED = "Internal error from Core"
"""What grpc's client says of a stream of requests whose time is over before its first message is sent."""
_STATUSES = {200, 400, 404, 429, 501, 503, 504}


class Leavers:
    """Sends requests and drops them.

    Args:
        rng: the randomness.
        client: sends the requests.
        drawing: the requests.
    """

    def __init__(self, rng: random.Random, client: Client, drawing: Drawing) -> None:
        self._rng, self._client, self._drawing = rng, client, drawing

    async def leave(self) -> None:
        """Begin some answers and drop them after their first parts, or before."""
        await self._send_all(timeout_s=None)

    async def be_late(self) -> None:
        """Give some requests so little time that it is over before, in the midst of, or after their answers."""
        await self._send_all(timeout_s=self._rng.choice([0.001, 0.01, 0.03, 0.1]))

    async def _send_all(self, timeout_s: float | None) -> None:
        calls = [self._drawing.request() for _ in range(6)]
        await asyncio.gather(*(self._send(call, self._rng.choice([0, 1, 2, 6]), timeout_s) for call in calls))

    async def _send(self, call: object, most: int, timeout_s: float | None) -> None:
        if isinstance(call, LibraryCall):
            await self._send_to_library(call, most, timeout_s)
        elif isinstance(call, SpeechCall) and self._rng.random() < 0.5:
            await self._read_over_grpc(call.transcribe(self._client, "leaver", timeout_s), most, timeout_s)
        elif isinstance(call, SpeechCall):
            await self._send_over_http(call.path, call.form(streams=call.is_stream), most, timeout_s)
        elif isinstance(call, BodyCall) and grpc_bodies.takes(call.path, call.body) and self._rng.random() < 0.5:
            await self._send_over_grpc(call, most, timeout_s)
        elif isinstance(call, BodyCall | TurnCall):
            body = dict(call.body) | {"stream": not {"best_of", "prompt_logprobs"} & call.body.keys()}
            await self._send_over_http(call.path, {"json": body}, most, timeout_s)

    async def _send_to_library(self, call: LibraryCall, most: int, timeout_s: float | None) -> None:
        with suppress(TetradError), deadline_after(timeout_s):
            stream = await self._client.llm.add_request("leaver", call.prompt, call.params.clone(), **call.options)
            number = 0
            async for _ in stream:
                number += 1
                if number > most and timeout_s is None:
                    break
            stream.close()

    async def _send_over_grpc(self, call: BodyCall, most: int, timeout_s: float | None) -> None:
        if call.path == grpc_bodies.COMPLETIONS:
            answers = self._client.grpc.Generate(grpc_bodies.generate_request(call.body, "leaver"), timeout=timeout_s)
        else:
            answers = self._client.grpc.Chat(grpc_bodies.chat_request(call.body, "leaver"), timeout=timeout_s)
        await self._read_over_grpc(answers, most, timeout_s)

    async def _read_over_grpc(self, answers: Any, most: int, timeout_s: float | None) -> None:
        number = 0
        try:
            async for _ in answers:
                number += 1
                if number > most and timeout_s is None:
                    break
            answers.cancel()
        except grpc.aio.AioRpcError as error:
            assert error.code() not in _FAILURES or error.details() == _NEVER_STARTED, error.details()

    async def _send_over_http(self, path: str, content: Mapping[str, Any], most: int, timeout_s: float | None) -> None:
        headers = {} if timeout_s is None else {"X-Request-Timeout": str(timeout_s)}
        with suppress(httpx.ReadTimeout):
            # A client that leaves closes its connection, with or without the beginning of an answer.
            wait_s = self._rng.choice([0.002, 0.02, 0.1]) if timeout_s is None and not most else 60
            async with self._client.http.stream("POST", path, **content, headers=headers, timeout=wait_s) as answer:
                assert answer.status_code in _STATUSES, await answer.aread()
                number = 0
                async for _ in answer.aiter_lines():
                    number += 1
                    if number > 2 * most and timeout_s is None:
                        break
