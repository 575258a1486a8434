"""Server interceptors: set the request context and map errors, in one place for every RPC of every service.

If a handler raises a TetradError, the caller gets its status with details. Any other exception is a bug: it is logged with a
traceback, and the caller gets INTERNAL without its text.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from tetrad.services.errors import InternalError, InvalidRequest, TetradError, Unsupported
from tetrad.services.log import get_logger
from tetrad.services.request_context import RequestContext, bind_context
from tetrad.services.rpc.handlers import WrappingInterceptor, behavior_of, with_behavior
from tetrad.services.rpc.status import to_status

log = get_logger()

Parse = Callable[[bytes], Any]


class ErrorsAndContexts(WrappingInterceptor):
    """Sets the request context from a call's metadata, and maps the errors of its handler."""

    def wrap(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        """Return a handler that sets the context and maps errors."""
        behavior = behavior_of(handler)
        wrap = _wrap_generator if inspect.isasyncgenfunction(behavior) else _wrap_coroutine
        parse = _refusing(handler.request_deserializer, is_stream=handler.request_streaming)
        return with_behavior(handler, wrap(behavior, method), parse=parse)


def _refusing(parse: Parse | None, *, is_stream: bool) -> Parse | None:
    """Return a parser that refuses malformed messages with INVALID_ARGUMENT; the library would answer UNKNOWN."""
    if parse is None:
        return None

    def parse_or_refuse(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            refusal = InvalidRequest(f"A message of {len(data)} bytes cannot be parsed as what this method takes.")
        if is_stream:  # the handler's read of its messages raises it
            raise refusal
        return refusal  # the library handles errors raised before the handler runs, so _checked raises it later

    return parse_or_refuse


def _checked(request: Any) -> Any:
    if isinstance(request, InvalidRequest):
        raise request
    return request


def _caller(context: grpc.aio.ServicerContext) -> RequestContext:
    return RequestContext.from_headers(dict(context.invocation_metadata() or ()))


def _wrap_coroutine(behavior: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        with bind_context(_caller(context)):
            try:
                return await behavior(_checked(request), context)
            except Exception as error:  # noqa: BLE001 - the only place that maps all errors
                await _abort(context, method, error)

    return call


def _wrap_generator(behavior: Callable[..., AsyncIterator[Any]], method: str) -> Callable[..., AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        with bind_context(_caller(context)):
            try:
                async for response in behavior(_checked(request), context):
                    yield response
            except Exception as error:  # noqa: BLE001 - as above
                await _abort(context, method, error)

    return call


async def _abort(context: grpc.aio.ServicerContext, method: str, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    try:
        await context.abort_with_status(rpc_status.to_status(to_status(answered_error(method, error))))
    except grpc.aio.InternalError:  # the caller has ended the call before it read the status
        raise asyncio.CancelledError from None


def answered_error(method: str, error: Exception) -> TetradError:
    """Return the TetradError for a method's caller; log an unexpected exception."""
    if isinstance(error, TetradError):
        return error
    if isinstance(error, NotImplementedError):  # raised by the generated base class for a method that the servicer lacks
        return Unsupported(f"{method} is not supported by this server.")
    log.error("rpc.failed", method=method, exc_info=error)
    return InternalError(f"{method} failed; the server's log has the details.")
