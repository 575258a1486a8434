"""X-data-parallel-rank: the header, vLLM's, by which a client pins a request to one of several engine cores."""

from starlette.requests import Request

from tetrad.services.errors import InvalidRequest

_HEADER = "x-data-parallel-rank"


def data_parallel_rank_of(request: Request) -> int | None:
    """Return the rank that a request asks for; None: any. InvalidRequest if it is no number."""
    given = request.headers.get(_HEADER)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise InvalidRequest(f"X-data-parallel-rank must be a whole number from 0 on, got {given[:64]!r}.", field=_HEADER)
    return int(given)
