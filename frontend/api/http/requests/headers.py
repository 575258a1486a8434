"""Request headers: reads the values that routes take from headers."""

from starlette.requests import Request

from tetrad.frontend.request.request_id import checked_request_id
from tetrad.services.errors import InvalidRequest

_RANK = "x-data-parallel-rank"


def request_id_of(request: Request, given: str | None) -> str:
    """Return the request's id: the one in its body, or else that of its header X-Request-Id.

    Args:
        request: the HTTP request.
        given: the id in its body.

    Raises:
        InvalidRequest: the body's id is malformed.
    """
    return str(request.state.request_id) if given is None else checked_request_id(given)


def data_parallel_rank_of(request: Request) -> int | None:
    """Return the engine core's rank from vLLM's header X-data-parallel-rank; None without one.

    Raises:
        InvalidRequest: the value is no whole number.
    """
    given = request.headers.get(_RANK)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise InvalidRequest(f"X-data-parallel-rank must be a whole number from 0 on, got {given[:64]!r}.", field=_RANK)
    return int(given)
