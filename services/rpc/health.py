"""Health: grpc.health.v1, with `""` for "the process is alive" and one name per service for "it accepts work".

Owned by the server; a service calls `set_ready` when its warm-up is over and whenever its readiness changes.
"""

from collections.abc import Sequence

from grpc_health.v1 import health, health_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The health of a server's services: alive from the start, ready after `set_ready(True)`.

    Args:
        service_names: full names ("tetrad.v1.WorkerService") that share one readiness.
    """

    def __init__(self, service_names: Sequence[str]) -> None:
        self.servicer = health.aio.HealthServicer()
        self._service_names = service_names
        self._draining = False
        self.ready = False

    async def start(self) -> None:
        """Report that the process is alive and not ready."""
        await self.servicer.set("", SERVING)
        await self._publish()

    async def set_ready(self, ready: bool) -> None:
        """Report whether the services accept work; ignored while draining."""
        self.ready = ready and not self._draining
        await self._publish()

    async def drain(self) -> None:
        """Report NOT_SERVING until the end."""
        self._draining = True
        self.ready = False
        await self._publish()

    async def _publish(self) -> None:
        for name in self._service_names:
            await self.servicer.set(name, SERVING if self.ready else NOT_SERVING)
