"""Methods: answers HEAD like GET without a body, and `OPTIONS *` with an empty body. Plain ASGI.

Load balancers probe servers with both methods. Knows no routes.
"""

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
_END = {"type": "http.response.body", "body": b"", "more_body": False}


class Methods:
    """Answers methods that apply to every path or to the server as a whole.

    Args:
        app: the application that answers all other requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method = scope.get("method")
        if method == "HEAD":
            await self._answer_head(scope, receive, send)
        elif method == "OPTIONS" and scope["path"] == "*":
            await Response(status_code=204, headers={"Allow": _METHODS})(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer_head(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_head(message: Message) -> None:
            # The answer ends here: the body may be an endless stream.
            if message["type"] == "http.response.start":
                await send(message)
                await send(_END)

        as_get = {**scope, "method": "GET"}
        await self._app(as_get, receive, send_head)
        if "route" in as_get:
            scope["route"] = as_get["route"]  # for the metrics' label
