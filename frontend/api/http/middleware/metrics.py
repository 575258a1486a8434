"""HTTP metrics: counts requests by route and status. Plain ASGI, outside of all middleware that may answer.

Labels are the paths of routes, not of clients' requests: otherwise a client could fill the memory with labels.
"""

import time
from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CLIENT_LEFT = 499
"""Status of a request whose client disconnected, as in proxies' logs."""

Observe = Callable[[str, str, int, float], None]


class HttpMetrics:
    """Counts every request when its answer has been sent; a stream at its end.

    Args:
        app: the application that answers requests.
        paths: paths of the routes without parameters, for requests that are refused before routing.
        observe: called with route, method, status and seconds.
    """

    def __init__(self, app: ASGIApp, paths: Collection[str], observe: Observe) -> None:
        self._app, self._paths, self._observe = app, frozenset(paths), observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), _CLIENT_LEFT

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._observe(self._handler(scope), method, status, time.perf_counter() - started)

    def _handler(self, scope: Scope) -> str:
        route = getattr(scope.get("route"), "path_format", None)
        if route is not None:
            return str(route)
        return scope["path"] if scope["path"] in self._paths else "other"
