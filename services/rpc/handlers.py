"""Handlers: describes and wraps the handler of a gRPC method for interceptors."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]
"""Returns the handler of a call to an interceptor; None: the server has no such method."""


class WrappingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc ships no types
    """Wraps the handlers of a server, each once, since a method has the same handler at every call."""

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]] = {}

    @abstractmethod
    def wrap(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        """Return the handler that replaces `handler`, that of a method ("/package.Service/Method")."""

    async def intercept_service(
        self, continuation: Continuation, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Return the wrapped handler."""
        handler = await continuation(details)
        if handler is None:
            return None
        inner, wrapped = self._wrapped.get(details.method, (None, None))
        if inner is not handler:  # another interceptor may answer this call with its own handler
            wrapped = self.wrap(handler, details.method)
            self._wrapped[details.method] = handler, wrapped
        return wrapped


def shape_of(handler: grpc.RpcMethodHandler) -> str:
    """Return "unary_unary", "unary_stream", "stream_unary" or "stream_stream": the kinds of its request and its response."""
    comes, goes = ("stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming))
    return f"{comes}_{goes}"


def behavior_of(handler: grpc.RpcMethodHandler) -> Callable[..., Any]:
    """Return a handler's function, which takes a request and a context.

    The function of a stream is an async generator, or a coroutine that writes to its context (such as grpc's health Watch).
    """
    behavior: Callable[..., Any] = getattr(handler, shape_of(handler))
    return behavior


def with_behavior(
    handler: grpc.RpcMethodHandler, behavior: Callable[..., Any], *, parse: Callable[[bytes], Any] | None = None
) -> grpc.RpcMethodHandler:
    """Return a handler of the same shape with another function; `parse`, if given, replaces its parser of requests."""
    return getattr(grpc, f"{shape_of(handler)}_rpc_method_handler")(
        behavior,
        request_deserializer=handler.request_deserializer if parse is None else parse,
        response_serializer=handler.response_serializer,
    )
