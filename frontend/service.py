"""serve: runs a frontend from start to drain: the models, HTTP and optionally the public gRPC API, on one event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tetrad.frontend.access.grpc_access import RequireApiKey
from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.gateways.served import gateway_services
from tetrad.frontend.api.grpc.call_limits import CallLimits
from tetrad.frontend.api.grpc.servicer import public_services
from tetrad.frontend.api.grpc.slow_calls import EndSlowCalls
from tetrad.frontend.api.http.app import create_app
from tetrad.frontend.api.http.responses.database import check_store
from tetrad.frontend.api.http.server.open_files import raise_open_files_limit
from tetrad.frontend.api.http.server.server import HttpServer
from tetrad.frontend.api.http.server.timed_connection import ConnectionLimits
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.services.observability.metrics import shown
from tetrad.services.rpc.server import Server
from tetrad.services.tls.identity import TlsFiles


async def serve(
    settings: FrontendSettings,
    shutdown: asyncio.Event,
    *,
    retire: asyncio.Event | None = None,
    on_ready: Callable[[int, str | None], None] | None = None,
) -> None:
    """Serve until `shutdown` is set, then drain.

    HTTP and gRPC answer from the start: health reports which services are missing, and requests are refused with Unavailable
    until all required services have been ready once. On an inherited port (`settings.http_fd`) HTTP answers only after that.

    At the end, running requests have `settings.drain_timeout_s` to finish; requests that run longer fail with Unavailable.

    Args:
        settings: the frontend's settings.
        shutdown: ends serving.
        retire: ends serving when a successor serves: no new connection is accepted, and everything accepted is answered within
            `settings.retire_timeout_s`. `shutdown` ends this wait early.
        on_ready: called with the HTTP port and the gRPC address (None: no gRPC) when requests are accepted.

    Raises:
        Unavailable: an address is in use, or the required services are not ready in time.
        NotFound, InvalidRequest: API keys, or a store of responses, that cannot be used.
    """
    guard = Guard(settings)
    if settings.http_fd is None:  # otherwise the stack has checked it, and a restart may outlive a fault of the disk
        await asyncio.to_thread(check_store, settings.responses_store)
    async with ModelDirectory.of(settings) as models:
        with shown(models.metrics):
            await _serve_models(models, settings, guard, _Ends(shutdown, retire or asyncio.Event()), on_ready)


async def _serve_models(
    models: ModelDirectory,
    settings: FrontendSettings,
    guard: Guard,
    ends: "_Ends",
    on_ready: Callable[[int, str | None], None] | None,
) -> None:
    http = _http_server(models, settings, guard)
    # Connections to a port that the stack holds open wait until HTTP starts, or the predecessor serves them.
    is_shared = settings.http_fd is not None
    if not is_shared:
        await http.start()
    grpc_server = _grpc_server(models, settings, guard)
    starting, ending = asyncio.create_task(models.start()), asyncio.create_task(ends.wait_any())
    tasks = [starting, ending]
    try:
        if grpc_server is not None:
            await grpc_server.start()
            tasks.append(asyncio.create_task(_publish_readiness(models, grpc_server)))
        await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            if is_shared:
                await http.start()
            if on_ready is not None:
                on_ready(http.port, None if grpc_server is None else grpc_server.address)
        elif is_shared:
            return  # no connection was accepted
        await ending
        await _drain(models, http, grpc_server, settings, ends)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if grpc_server is not None:
            await grpc_server.stop()
        await http.stop()


async def _drain(
    models: ModelDirectory, http: HttpServer, grpc_server: Server | None, settings: FrontendSettings, ends: "_Ends"
) -> None:
    """Accept nothing more, and wait until running requests have been answered, as long as the settings allow."""
    models.readiness.note_leaving()
    if grpc_server is not None:
        await grpc_server.health.drain()
    if not ends.shutdown.is_set():
        await ends.unless_shut_down(_retire(models, http, grpc_server, settings.retire_timeout_s), settings.retire_timeout_s)
    models.withdraw()
    http.close_connections_with_answers()
    await asyncio.sleep(settings.withdrawal_wait_s)
    await models.drain(settings.drain_timeout_s)


async def _publish_readiness(models: ModelDirectory, server: Server) -> None:
    """Set the status of the gRPC health service whenever the readiness changes."""
    async for report in models.readiness.follow():
        await server.health.set_ready(report.ready)


@dataclass(frozen=True)
class _Ends:
    """The events that end serving."""

    shutdown: asyncio.Event
    retire: asyncio.Event

    async def wait_any(self) -> None:
        """Wait until either event is set."""
        await self._first_of(self.shutdown.wait(), self.retire.wait(), timeout_s=None)

    async def unless_shut_down(self, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        """Wait for `work`; cancel it when `shutdown` is set or after `timeout_s`."""
        await self._first_of(self.shutdown.wait(), work, timeout_s=timeout_s)

    async def _first_of(self, *work: Coroutine[Any, Any, Any], timeout_s: float | None) -> None:
        tasks = [asyncio.create_task(each) for each in work]
        try:
            await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _retire(models: ModelDirectory, http: HttpServer, grpc_server: Server | None, timeout_s: float) -> None:
    """Accept no new connections or calls, and return when all accepted ones have been answered."""
    closing = None if grpc_server is None else asyncio.create_task(grpc_server.retire(timeout_s))
    try:
        await http.retire()
        # Work without an HTTP connection: calls of the gRPC API, background responses.
        await models.wait_idle()
    finally:
        if closing is not None:
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)


def _http_server(models: ModelDirectory, settings: FrontendSettings, guard: Guard) -> HttpServer:
    return HttpServer(
        create_app(models, settings, guard),
        host=settings.host,
        port=settings.port,
        uds=settings.uds,
        keep_alive_timeout_s=settings.keep_alive_timeout_s,
        limits=ConnectionLimits.of(settings, max_connections=raise_open_files_limit()),
        fd=settings.http_fd,
        tls=settings.public_tls if settings.uds is None else None,
        knows_callers=guard.knows_users or settings.ssl_ca_certs is not None,
    )


def _grpc_server(models: ModelDirectory, settings: FrontendSettings, guard: Guard) -> Server | None:
    public, private = settings.grpc_address, settings.private_listen
    if not public and not private:
        return None
    tls = settings.public_tls or TlsFiles()
    identity = {"tls_cert_file": tls.cert_file, "tls_key_file": tls.key_file, "tls_ca_file": tls.ca_file}
    limits = CallLimits(settings.request_timeout_s)
    return Server(
        settings.model_copy(update={"listen": public or private, **identity}),
        public_services(
            models,
            limits,
            max_pooling_inputs=settings.max_pooling_inputs,
            max_upload_bytes=settings.max_total_body_bytes,
        )
        | gateway_services(settings.gateway_apis, models, limits, guard),
        interceptors=[RequireApiKey(guard), EndSlowCalls(settings.slow_client_timeout_s)],
        also_listen=(private,) if public and private else (),
        shares_port=bool(private),
        knows_callers=guard.knows_users,
        # The limit of messages may be that of preprocessed images, which clients do not send.
        max_request_bytes=max(settings.max_body_bytes, DEFAULT_MAX_MESSAGE_BYTES),
    )
