"""Ports: the engine core's two gRPC servers, one for the sessions of frontends, one for operators; ready and gone together.

Apart, so that a network can let frontends in and keep everybody from pausing the engine. Operators are served to the end of a
drain: they may want to see how far it is.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tetrad.engine_core_svc.api.admin import EngineCoreAdminServicer
from tetrad.engine_core_svc.api.servicer import EngineCoreServicer
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.services.server import Server
from tetrad.v1 import engine_core_pb2_grpc


class Ports:
    """The servers; bound by `start`, ready when told so.

    Args:
        settings: where to listen; no admin port if `admin_listen` is empty.
        servicer: of the sessions.
        admin: of the operators.
    """

    def __init__(self, settings: EngineCoreSettings, servicer: EngineCoreServicer, admin: EngineCoreAdminServicer) -> None:
        add_sessions = partial(engine_core_pb2_grpc.add_EngineCoreServiceServicer_to_server, servicer)
        self._sessions = Server(settings, {"tetrad.v1.EngineCoreService": add_sessions})
        self._servers = [self._sessions]
        if settings.admin_listen:
            add_admin = partial(engine_core_pb2_grpc.add_EngineCoreAdminServiceServicer_to_server, admin)
            own = settings.model_copy(update={"listen": settings.admin_listen})
            self._servers.append(Server(own, {"tetrad.v1.EngineCoreAdminService": add_admin}, channelz=True))

    async def start(self) -> None:
        """Bind and serve; Unavailable if an address is taken."""
        for server in self._servers:
            await server.start()

    async def set_ready(self, ready: bool) -> None:
        """Report whether the engine takes work."""
        for server in self._servers:
            await server.health.set_ready(ready)

    async def drain(self, finish: Callable[[], Awaitable[Any]]) -> None:
        """Stop taking work, let `finish` complete within the grace, then stop."""
        await self._sessions.drain(finish)
        await self.stop()

    async def stop(self) -> None:
        """Stop at once. Again: a no-op."""
        for server in self._servers:
            await server.stop()
