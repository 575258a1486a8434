"""Rendering: encodes answers with many log-probabilities in a side thread."""

from collections.abc import Callable
from typing import TypeVar

from tetrad.frontend.api.http.schemas.objects import JsonResponse
from tetrad.frontend.net.side_thread import in_side_thread

T = TypeVar("T")

_MANY = 4096
"""Log-probabilities that take about 5 ms to render: the thread's turn."""


async def rendered(num_logprobs: int, render: Callable[[], T]) -> T:
    """Return what `render` returns; it must only read what no other task changes."""
    return render() if num_logprobs < _MANY else await in_side_thread(render)


async def json_response(answer: object, num_logprobs: int) -> JsonResponse:
    """Return an answer as a response."""
    return await rendered(num_logprobs, lambda: JsonResponse(answer))
