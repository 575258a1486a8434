"""Server interceptors: request contexts and errors, once for every RPC of every service.

A handler raises a TetradError; the caller gets its status with details. Anything else is our bug: logged with a traceback,
answered with INTERNAL and no inner text.
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
from tetrad.services.status import to_status

log = get_logger()

Parse = Callable[[bytes], Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]


class ErrorsAndContexts(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc ships no types
    """Binds the request context that a call's metadata tells of, and maps what its handler raises."""

    async def intercept_service(
        self, continuation: Continuation, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler, wrapped."""
        handler = await continuation(details)
        if handler is None:
            return None
        context = RequestContext.from_headers(dict(details.invocation_metadata or ()))
        kind = f"{_SHAPE[handler.request_streaming]}_{_SHAPE[handler.response_streaming]}"
        # A stream is answered by an async generator, or by a coroutine that writes to its context (grpc's health Watch).
        wrap = _wrap_generator if inspect.isasyncgenfunction(getattr(handler, kind)) else _wrap_coroutine
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            wrap(getattr(handler, kind), details.method, context),
            request_deserializer=_refusing(handler.request_deserializer, is_stream=handler.request_streaming),
            response_serializer=handler.response_serializer,
        )


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


_SHAPE = {False: "unary", True: "stream"}


def _wrap_coroutine(
    behavior: Callable[..., Awaitable[Any]], method: str, caller: RequestContext
) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        with bind_context(caller):
            try:
                return await behavior(_checked(request), context)
            except Exception as error:  # noqa: BLE001 - the one place where everything is mapped
                await _abort(context, method, error)

    return call


def _wrap_generator(
    behavior: Callable[..., AsyncIterator[Any]], method: str, caller: RequestContext
) -> Callable[..., AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        with bind_context(caller):
            try:
                async for response in behavior(_checked(request), context):
                    yield response
            except Exception as error:  # noqa: BLE001 - as above
                await _abort(context, method, error)

    return call


async def _abort(context: grpc.aio.ServicerContext, method: str, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if context.cancelled():
        return  # the caller is gone: nobody to answer, and what broke on the way out is no fault
    if isinstance(error, NotImplementedError):  # the generated base class, for a method that the servicer does not have
        error = Unsupported(f"{method} is not supported by this server.")
    if not isinstance(error, TetradError):
        log.error("rpc.failed", method=method, exc_info=error)
        error = InternalError(f"{method} failed; the server's log has the details.")
    try:
        await context.abort_with_status(rpc_status.to_status(to_status(error)))
    except grpc.aio.InternalError:  # the caller left before it had read up to its status
        raise asyncio.CancelledError from None
