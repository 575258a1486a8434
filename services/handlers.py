"""Handlers: a gRPC method's handler as interceptors see it: its shape, what it does, and the same with something else to do."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]
"""What an interceptor asks for the handler of a call; None: the server has no such method."""


def shape_of(handler: grpc.RpcMethodHandler) -> str:
    """Return "unary_unary", "unary_stream", "stream_unary" or "stream_stream": what comes, and what goes."""
    comes, goes = ("stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming))
    return f"{comes}_{goes}"


def behavior_of(handler: grpc.RpcMethodHandler) -> Callable[..., Any]:
    """Return what a handler does with a request and a context.

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
