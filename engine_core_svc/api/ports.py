"""Ports: the engine core's two gRPC servers, one for the sessions of frontends, one for operators, started and stopped
together.

Two ports, so that a network can admit frontends and still keep them from pausing the engine. The operators' port serves until
the end of a drain, for its progress.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tetrad.engine_core_svc.api.admin import EngineCoreAdminServicer
from tetrad.engine_core_svc.api.servicer import EngineCoreServicer
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.services.rpc.carrier import GRPC, Carrier
from tetrad.services.rpc.server import Server
from tetrad.v1 import engine_core_pb2_grpc


class Ports:
    """The servers; bound by `start`, ready when told so.

    Args:
        settings: where to listen; no admin port if `admin_listen` is empty.
        servicer: of the sessions.
        admin: of the operators.
        carrier: brings the calls.
    """

    def __init__(
        self,
        settings: EngineCoreSettings,
        servicer: EngineCoreServicer,
        admin: EngineCoreAdminServicer,
        carrier: Carrier = GRPC,
    ) -> None:
        add_sessions = partial(engine_core_pb2_grpc.add_EngineCoreServiceServicer_to_server, servicer)
        self._sessions = Server(settings, {"tetrad.v1.EngineCoreService": add_sessions}, carrier=carrier)
        self._servers = [self._sessions]
        if settings.admin_listen:
            add_admin = partial(engine_core_pb2_grpc.add_EngineCoreAdminServiceServicer_to_server, admin)
            own = settings.model_copy(update={"listen": settings.admin_listen})
            services = {"tetrad.v1.EngineCoreAdminService": add_admin}
            self._servers.append(Server(own, services, channelz=True, carrier=carrier))

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
