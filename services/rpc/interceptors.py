"""Server interceptors: request contexts and error mapping, once for every RPC of every service.

A handler raises a TetradError; the caller gets its status with details. Any other exception is our bug: logged with a
traceback, answered with INTERNAL and without its text.
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
    """Binds the request context that a call's metadata tells of, and maps what its handler raises."""

    def wrap(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        """Return the handler with contexts and errors."""
        behavior = behavior_of(handler)
        wrap = _wrap_generator if inspect.isasyncgenfunction(behavior) else _wrap_coroutine
        parse = _refusing(handler.request_deserializer, is_stream=handler.request_streaming)
        return with_behavior(handler, wrap(behavior, method), parse=parse)


def _refusing(parse: Parse | None, *, is_stream: bool) -> Parse | None:
    """Return `parse`, but what it cannot take is INVALID_ARGUMENT; the library would answer UNKNOWN."""
    if parse is None:
        return None

    def parse_or_refuse(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            refusal = InvalidRequest(f"A message of {len(data)} bytes cannot be parsed as what this method takes.")
        if is_stream:  # comes out where the handler reads its messages
            raise refusal
        return refusal  # what is raised before the handler runs is the library's; _checked raises it

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
            except Exception as error:  # noqa: BLE001 - the one place where everything is mapped
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
    except grpc.aio.InternalError:  # the caller left before it had read up to its status
        raise asyncio.CancelledError from None


def answered_error(method: str, error: Exception) -> TetradError:
    """Return the TetradError for a method's caller; an unexpected exception is logged."""
    if isinstance(error, TetradError):
        return error
    if isinstance(error, NotImplementedError):  # the generated base class, for a method that the servicer does not have
        return Unsupported(f"{method} is not supported by this server.")
    log.error("rpc.failed", method=method, exc_info=error)
    return InternalError(f"{method} failed; the server's log has the details.")
