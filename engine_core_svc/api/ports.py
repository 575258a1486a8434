"""Ports: the engine core's two gRPC servers, one for the sessions of frontends, one for operators, started and stopped
together.

There are two ports, so that a network can admit frontends without letting them pause the engine. The operators' port serves
until the end of a drain, so that operators can watch its progress.
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
    """The two servers; `start` binds them, `set_ready` sets their health.

    Args:
        settings: addresses to listen on; there is no admin port if `admin_listen` is empty.
        servicer: serves the sessions.
        admin: serves the operators.
        carrier: carries the calls.
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
        """Bind and serve. Raises Unavailable if an address is in use."""
        for server in self._servers:
            await server.start()

    async def set_ready(self, ready: bool) -> None:
        """Set whether health reports that the engine is ready."""
        for server in self._servers:
            await server.health.set_ready(ready)

    async def drain(self, finish: Callable[[], Awaitable[Any]]) -> None:
        """Refuse new work, run `finish` within the grace period, then stop."""
        await self._sessions.drain(finish)
        await self.stop()

    async def stop(self) -> None:
        """Stop at once; further calls do nothing."""
        for server in self._servers:
            await server.stop()
