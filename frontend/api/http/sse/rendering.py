"""Rendering: encodes answers with many log-probabilities in a side thread, and sends them in pieces."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.logprobs import prompt_logprobs_json
from tetrad.frontend.api.http.schemas.objects import JsonResponse, PromptLogprobs, encode, event
from tetrad.frontend.net.side_thread import unless_short
from tetrad.frontend.request.logprobs import drop_candidates, num_candidates
from tetrad.frontend.request.outputs import PositionLogprobs, RequestOutput

T = TypeVar("T")

_MANY = 4096
"""Number of log-probabilities from which rendering takes place in a side thread: about 5 ms."""


async def rendered(num_logprobs: int, render: Callable[[], T]) -> T:
    """Return the result of `render`, which may run in a thread: it must read only values that no other task changes."""
    return await unless_short(render, is_short=num_logprobs < _MANY)


def num_logprobs_of(output: RequestOutput) -> int:
    """Return the number of an output's candidates, with those of its prompt."""
    return num_candidates(output.prompt_logprobs, *(each.logprobs for each in output.outputs))


async def rendered_prompt_logprobs(
    positions: Sequence[PositionLogprobs | None], parts: LargeParts
) -> tuple[PromptLogprobs, int]:
    """Return the log-probabilities of a prompt for an answer, and their number of candidates; the candidates are freed."""
    number = num_candidates(positions)
    found = await rendered(number, partial(prompt_logprobs_json, positions, parts))
    await rendered(number, partial(drop_candidates, positions))
    return found, number


async def drop_logprobs(output: RequestOutput) -> None:
    """Free the candidates of an output that has been rendered."""
    for positions in (output.prompt_logprobs, *(each.logprobs for each in output.outputs)):
        if positions:
            await rendered(num_candidates(positions), partial(drop_candidates, positions))


async def json_response(answer: object, parts: LargeParts, num_logprobs: int) -> Response:
    """Return an answer with marks of `parts` as a response."""
    if not parts:
        return await rendered(num_logprobs, lambda: JsonResponse(answer))
    return PiecesResponse(await rendered(num_logprobs, partial(parts.take, answer)))


async def json_event(answer: object, parts: LargeParts, num_logprobs: int) -> bytes:
    """Return an answer with marks of `parts` as one server-sent event."""
    if not parts:
        return event(answer)
    return await rendered(num_logprobs, lambda: b"data: %b\n\n" % b"".join(parts.take(answer)))


async def json_line(answer: object, parts: LargeParts, num_logprobs: int) -> bytes:
    """Return an answer with marks of `parts` as one line of a stream."""
    if not parts:
        return encode(answer) + b"\n"
    return await rendered(num_logprobs, lambda: b"%b\n" % b"".join(parts.take(answer)))


class PiecesResponse(Response):
    """A JSON response that is sent in pieces; the event loop runs other tasks between two of them."""

    media_type = "application/json"

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(headers={"content-length": str(sum(map(len, pieces)))})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
