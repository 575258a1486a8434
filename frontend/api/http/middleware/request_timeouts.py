"""Request timeouts: reads a client's time limit (`X-Request-Timeout`), counted from the request's arrival. Plain ASGI.

It only sets the deadline; deadlines.py enforces it.
"""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from tetrad.frontend.api.http.middleware.refusals import refusal
from tetrad.frontend.request.deadlines import deadline_after
from tetrad.services.errors import InvalidRequest

_HEADER = b"x-request-timeout"
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")


class RequestTimeouts:
    """Sets the deadline of each request to the earlier of the client's and the server's limit.

    Args:
        app: the application that answers requests.
        most_s: the server's limit in seconds; None: no limit.
    """

    def __init__(self, app: ASGIApp, most_s: float | None) -> None:
        self._app = app
        self._most_s = most_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            given_s = timeout_from([value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER])
        except InvalidRequest as error:
            await refusal(scope, error)(scope, receive, send)
            return
        with deadline_after(self._most_s), deadline_after(given_s):
            await self._app(scope, receive, send)


def timeout_from(values: list[str]) -> float | None:
    """Return the seconds in the header; None: it is absent. InvalidRequest for an invalid value or several."""
    if not values:
        return None
    text = values[0].strip()
    if len(values) > 1 or not _SECONDS.fullmatch(text) or float(text) == 0:
        shown = ", ".join(values)[:64]
        raise InvalidRequest(f"X-Request-Timeout must be a number of seconds above 0, as 30 or 2.5, got {shown!r}.")
    return float(text)
