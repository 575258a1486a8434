"""Request ids: adds X-Request-Id to every response, and the same id to the request's log lines and trace.

Plain ASGI, the outermost middleware: a call is traced from here to the last byte of its answer.
"""

import dataclasses
import email.utils
import functools
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tetrad.frontend.request.call_trace import CallTrace
from tetrad.services.observability.tracing import Tracer
from tetrad.services.request_context import HEADERS, REQUEST_ID, RequestContext, bind_context, new_request_id

_FIRST_FAILURE = 400
_NAMES = {name.encode(): name for name in HEADERS}


class RequestIds:
    """Uses the client's id or makes one, and adds it and the date to the response.

    Args:
        app: the application that answers requests.
        tracer: the frontend's tracer.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = _context_of(scope)
        scope.setdefault("state", {})["request_id"] = context.request_id
        call = CallTrace(self._tracer, context) if scope["method"] == "POST" else None

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = context.request_id
                headers["date"] = _date(int(time.time()))
                if call is not None and message["status"] >= _FIRST_FAILURE:
                    call.fail(f"HTTP_{message['status']}")
            await send(message)

        with bind_context(context) if call is None else call.answering():
            await self._app(scope, receive, send_with_id)


def _context_of(scope: Scope) -> RequestContext:
    sent = {_NAMES[name]: value.decode("latin-1") for name, value in scope["headers"] if name in _NAMES}
    context = RequestContext.from_headers(sent)
    return context if context.request_id else dataclasses.replace(context, request_id=new_request_id())


@functools.lru_cache(maxsize=1)
def _date(unix_s: int) -> str:
    return email.utils.formatdate(unix_s, usegmt=True)
