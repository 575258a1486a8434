"""Server: binds, serves and drains gRPC, in the same way for every service.

The caller passes the servicers and the stop event, so a test binds port 0 and stops cleanly, and signals are handled in one
place (process.py). Drain follows ARCHITECTURE.md (Stopping): NOT_SERVING, withdrawal wait, refuse new work, grace, stop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
from grpc_channelz.v1 import channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tetrad.services.log import get_logger
from tetrad.services.rpc.call_metrics import CallMetrics
from tetrad.services.rpc.carrier import GRPC, Carrier
from tetrad.services.rpc.channelz_servicer import SERVICE_NAME as CHANNELZ_NAME
from tetrad.services.rpc.channelz_servicer import ChannelzServicer
from tetrad.services.rpc.health import Health
from tetrad.services.rpc.interceptors import ErrorsAndContexts
from tetrad.services.rpc.keepalive import KEEPALIVE_OPTIONS
from tetrad.services.settings import ServiceSettings
from tetrad.services.tls.identity import Identity

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    # Servers detect lost clients as fast as clients detect lost servers.
    *KEEPALIVE_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # The server writes nothing during a long non-streaming call, and only writes reset the count of pings.
    ("grpc.http2.max_ping_strikes", 0),
    # A connection that does not finish TLS and HTTP/2's first frames in time is closed; gRPC would wait for two minutes.
    ("grpc.server_handshake_timeout_ms", 5_000),
    # Maximum size of one read of a connection. gRPC increases it while data arrives without a pause: to hundreds of megabytes
    # for some clients. Large messages arrive as fast in pieces of this size.
    ("grpc.experimental.tcp_max_read_buffer_size", 1 << 20),
    # Maximum number of calls that wait for the event loop. By default gRPC cancels such calls at random from 1,000 on.
    ("grpc.server.max_pending_requests", 16_384),
    ("grpc.server.max_pending_requests_hard_limit", 16_384),
)

log = get_logger()

Register = Callable[[grpc.aio.Server], None]
"""Adds one servicer to a server, e.g. `lambda s: add_WorkerServiceServicer_to_server(servicer, s)`."""


class Server:
    """A gRPC server with health and reflection, bound but not ready until `health.set_ready(True)`.

    Args:
        settings: address, message limits, drain times.
        services: the function that adds the servicer, by full service name.
        interceptors: further interceptors, inside of the one that maps errors.
        also_listen: further addresses to listen on.
        knows_callers: whether an interceptor checks keys.
        shares_port: whether the server that replaces it, with the same setting, can bind the same port.
        max_request_bytes: maximum size of a message that it reads, where `max_message_bytes` is more. None: the latter.
        channelz: report every connection of this process (grpc.channelz): for operators, never for clients.
        carrier: transports the calls.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        services: Mapping[str, Register],
        *,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        also_listen: Sequence[str] = (),
        knows_callers: bool = False,
        shares_port: bool = False,
        max_request_bytes: int | None = None,
        channelz: bool = False,
        carrier: Carrier = GRPC,
    ) -> None:
        self._carrier = carrier
        self._settings = settings
        self._also_listen = also_listen
        self._knows_callers = knows_callers
        self.health = Health(tuple(services))
        options = (
            *SERVER_OPTIONS,
            # Two servers on one port get its connections at random, so this is used only while one replaces the other.
            ("grpc.so_reuseport", int(shares_port)),
            ("grpc.max_receive_message_length", min(filter(None, (settings.max_message_bytes, max_request_bytes)))),
            ("grpc.max_send_message_length", settings.max_message_bytes),
            # gRPC refuses metadata between the two limits at random, so they are equal.
            ("grpc.max_metadata_size", settings.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", settings.max_metadata_bytes),
            ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        )
        self._server = carrier.server([CallMetrics(), ErrorsAndContexts(), *interceptors], options)
        for register in services.values():
            register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, self._server)
        names = [*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
        if channelz:
            channelz_pb2_grpc.add_ChannelzServicer_to_server(ChannelzServicer(), self._server)
            names.append(CHANNELZ_NAME)
        if settings.reflection:
            reflection.enable_server_reflection(names, self._server)
        self.address = ""
        self._stopped = False

    async def start(self) -> None:
        """Bind and serve; `address` is the address for a client on this machine.

        Raises:
            Unavailable: the address is in use.
            InvalidRequest: the TLS files cannot be used.
        """
        settings = self._settings
        identity = None if settings.tls is None else Identity(settings.tls)
        knows_callers = self._knows_callers or settings.tls_ca_file is not None
        for listen in (*self._also_listen, settings.listen):
            self.address = await self._carrier.bind(self._server, listen, identity, callers_are_known=knows_callers)
        await self.health.start()
        await self._server.start()
        log.info("server.started", address=self.address)

    async def drain(self, finish: Callable[[], Awaitable[Any]] | None = None) -> None:
        """Refuse new work, run `finish` within the grace period, then stop.

        Args:
            finish: waits until running work is done; cancelled after the grace period, not called if that is 0.
        """
        await self.health.drain()
        await asyncio.sleep(self._settings.withdrawal_wait_s)
        if finish is not None and self._settings.drain_timeout_s > 0:
            try:
                await asyncio.wait_for(finish(), self._settings.drain_timeout_s)
            except TimeoutError:
                log.warning("server.drain_timed_out", drain_timeout_s=self._settings.drain_timeout_s)
        await self.stop()

    async def retire(self, grace_s: float) -> None:
        """Accept no new connections, send GOAWAY to clients, and wait until all calls have ended, at most `grace_s` seconds.

        Calls that still run then are ended. `stop` ends the wait.
        """
        await self.health.drain()
        await self._server.stop(grace_s)

    async def stop(self) -> None:
        """Stop at once; open calls are cancelled after 0.2 s for their last messages. Further calls do nothing."""
        if not self._stopped:
            self._stopped = True
            await self._server.stop(grace=0.2)
            log.info("server.stopped", address=self.address)
