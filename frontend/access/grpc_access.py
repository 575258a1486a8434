"""gRPC access: requires the keys of HTTP also for gRPC calls, as metadata `authorization: Bearer KEY` or `x-api-key`.

Health and reflection need no key: probes have none, and the contract is public.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import grpc

from tetrad.frontend.access.guard import Guard, bearer_key
from tetrad.services.errors import Unauthenticated
from tetrad.services.rpc.handlers import Continuation, shape_of

_OPEN_SERVICES = ("/grpc.health.v1.", "/grpc.reflection.")


class RequireApiKey(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc ships no types
    """Answers calls without a valid key with UNAUTHENTICATED.

    Args:
        guard: checks keys.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self, continuation: Continuation, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler of the call, or a handler that refuses it; None: there is no such method, for any caller."""
        handler = await continuation(details)
        if handler is not None and not details.method.startswith(_OPEN_SERVICES):
            try:
                self._guard.check_user(presented_keys(details.invocation_metadata))
            except Unauthenticated as error:
                return _refusal(error, handler)
        return handler


def presented_keys(metadata: Iterable[tuple[str, str]] | None) -> Iterator[str]:
    """Yield the keys in a call's metadata."""
    for name, value in metadata or ():
        if name == "authorization" and (key := bearer_key(value)) is not None:
            yield key
        elif name == "x-api-key":
            yield value


def _refusal(error: Unauthenticated, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """Return a handler of the same shape, for the metrics' labels; it does not parse the request."""

    async def refuse(_: Any, __: grpc.aio.ServicerContext) -> NoReturn:
        raise error

    return getattr(grpc, f"{shape_of(handler)}_rpc_method_handler")(refuse)
