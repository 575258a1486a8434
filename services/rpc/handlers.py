"""Handlers: describes and wraps the handler of a gRPC method for interceptors."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]
"""Finds the handler of a call for an interceptor; None: the server has no such method."""


class WrappingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc ships no types
    """Puts something around the handlers of a server: once around each, as a method has the same one at every call."""

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]] = {}

    @abstractmethod
    def wrap(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        """Return the handler that replaces the given one of a method ("/package.Service/Method")."""

    async def intercept_service(
        self, continuation: Continuation, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler, wrapped."""
        handler = await continuation(details)
        if handler is None:
            return None
        inner, wrapped = self._wrapped.get(details.method, (None, None))
        if inner is not handler:  # an interceptor may answer this call with a handler of its own
            wrapped = self.wrap(handler, details.method)
            self._wrapped[details.method] = handler, wrapped
        return wrapped


def shape_of(handler: grpc.RpcMethodHandler) -> str:
    """Return "unary_unary", "unary_stream", "stream_unary" or "stream_stream": the kinds of its request and its response."""
    comes, goes = ("stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming))
    return f"{comes}_{goes}"


def behavior_of(handler: grpc.RpcMethodHandler) -> Callable[..., Any]:
    """Return a handler's function of a request and a context.

    A stream is answered by an async generator, or by a coroutine that writes to its context (as grpc's health Watch).
    """
    behavior: Callable[..., Any] = getattr(handler, shape_of(handler))
    return behavior


def with_behavior(
    handler: grpc.RpcMethodHandler, behavior: Callable[..., Any], *, parse: Callable[[bytes], Any] | None = None
) -> grpc.RpcMethodHandler:
    """Return a handler of the same shape that does something else; `parse` makes requests of bytes instead of its own."""
    return getattr(grpc, f"{shape_of(handler)}_rpc_method_handler")(
        behavior,
        request_deserializer=handler.request_deserializer if parse is None else parse,
        response_serializer=handler.response_serializer,
    )
