"""DirectServer: runs the handlers of servicers for calls from the same event loop.

Generated code adds servicers to it as to a grpc.aio.Server, and the services' interceptors wrap their handlers in the same way:
contexts, errors and call metrics are the same. Each call runs in its own task, with the context variables of the server's
start, not of its client.
"""

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import grpc

from tetrad.services.direct.addresses import Addresses
from tetrad.services.direct.context import Context
from tetrad.services.direct.exchange import Exchange, Metadata, Status
from tetrad.services.rpc.handlers import Continuation, behavior_of

_STOPPED = Status(grpc.StatusCode.UNAVAILABLE, "The server was stopped.")


class _CallDetails(NamedTuple):
    """The details of a call for interceptors, before it runs."""

    method: str
    invocation_metadata: Metadata


class DirectServer:
    """A server in this process.

    Args:
        addresses: registry in which clients find it.
        interceptors: wrap its handlers, the outermost first.
    """

    def __init__(self, addresses: Addresses, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> None:
        self._addresses = addresses
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        self._find: Continuation = self._own_handler
        for interceptor in reversed(interceptors):
            self._find = partial(interceptor.intercept_service, self._find)
        self._bound: list[str] = []
        self._exchanges: dict[Exchange, asyncio.Task[None]] = {}
        self._variables = contextvars.copy_context()
        self.is_serving = False

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Do nothing: generated code calls this, too, but `add_registered_method_handlers` gets the same handlers."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        """Serve a service's methods."""
        self._handlers.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def bind(self, address: str) -> None:
        """Serve at an address, once `start` was called."""
        self._bound.append(address)

    async def start(self) -> None:
        """Accept calls."""
        self._variables = contextvars.copy_context()
        self.is_serving = True
        for address in self._bound:
            self._addresses.add(address, self)

    async def stop(self, grace: float | None) -> None:
        """Accept no more calls; running calls get `grace` seconds to end, then they end with UNAVAILABLE."""
        self.is_serving = False
        for address in self._bound:
            self._addresses.remove(address, self)
        if self._exchanges and grace:
            await asyncio.wait(self._exchanges.values(), timeout=grace)
        running = list(self._exchanges.values())
        for exchange in list(self._exchanges):
            exchange.cut(_STOPPED)
        await asyncio.gather(*running, return_exceptions=True)

    def accept(self, exchange: Exchange) -> None:
        """Run a client's call."""
        task = asyncio.create_task(self._serve(exchange), context=self._variables.copy(), name=exchange.method)
        self._exchanges[exchange] = task
        task.add_done_callback(lambda _: self._exchanges.pop(exchange))
        exchange.own(task)
        exchange.begun.set()

    async def _own_handler(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(details.method)

    async def _serve(self, exchange: Exchange) -> None:
        context = Context(exchange)
        try:
            handler = await self._find(_CallDetails(exchange.method, exchange.metadata))
            if handler is None:
                context.set_code(grpc.StatusCode.UNIMPLEMENTED)
                context.set_details("Method not found!")
            else:
                await _answer(handler, exchange, context)
        except asyncio.CancelledError:
            exchange.end(Status(grpc.StatusCode.CANCELLED, "The handler was cancelled."))
            raise
        except grpc.aio.AbortError:
            pass  # the context has the status
        except Exception as error:  # noqa: BLE001 - gRPC answers the same for a handler that fails outside of the interceptors
            context.set_code(grpc.StatusCode.UNKNOWN)
            context.set_details(f"Unexpected {type(error)}: {error}")
        exchange.end(context.status)


async def _answer(handler: grpc.RpcMethodHandler, exchange: Exchange, context: Context) -> None:
    """Run a handler: one of a stream is an async generator or writes to its context, any other returns its response."""
    behavior = behavior_of(handler)
    request = _messages(exchange) if handler.request_streaming else await exchange.requests.get()
    if inspect.isasyncgenfunction(behavior):
        async with contextlib.aclosing(behavior(request, context)) as responses:
            async for response in responses:
                await context.write(response)
        return
    response = await behavior(request, context)
    if not handler.response_streaming:
        await context.write(response)


async def _messages(exchange: Exchange) -> AsyncIterator[Any]:
    while (message := await exchange.requests.get()) is not grpc.aio.EOF:
        yield message
