"""Request ids: every response carries X-Request-Id, every log line of its request and its trace the same id.

Plain ASGI, outermost: a call is traced from here to the last byte of its answer.
"""

import dataclasses
import email.utils
import functools
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tetrad.frontend.request.call_trace import CallTrace
from tetrad.services.errors import InvalidRequest
from tetrad.services.request_context import HEADERS, REQUEST_ID, VALID_REQUEST_ID, RequestContext, bind_context
from tetrad.services.tracing import Tracer

_FIRST_FAILURE = 400
_NAMES = {name.encode(): name for name in HEADERS}


class RequestIds:
    """Takes the id a client sent, or makes one, and puts it on the response, together with the date.

    Args:
        app: what answers.
        tracer: of the frontend.
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


def request_id_of(request: Request, given: str | None) -> str:
    """Return the id that a request's body gives, or that of its header; InvalidRequest if the body's cannot be used."""
    return str(request.state.request_id) if given is None else checked_request_id(given)


def new_request_id() -> str:
    """Return an id for a call that came without one that can be used: nobody is refused for a header."""
    return uuid.uuid4().hex


def checked_request_id(given: str) -> str:
    """Return an id that a request gives; InvalidRequest if it cannot be used."""
    if not VALID_REQUEST_ID.fullmatch(given):
        raise InvalidRequest(f"request_id must match {VALID_REQUEST_ID.pattern}, got {given[:64]!r}.", field="request_id")
    return given


@functools.lru_cache(maxsize=1)
def _date(unix_s: int) -> str:
    return email.utils.formatdate(unix_s, usegmt=True)
