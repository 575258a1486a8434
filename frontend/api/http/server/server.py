"""HttpServer: runs uvicorn on a given socket, in the frontend's event loop, without its signal handlers and timers."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from tetrad.frontend.api.http.server.connection import connection_type
from tetrad.frontend.api.http.server.listener import bind, tune
from tetrad.frontend.api.http.server.retirement import Retirement
from tetrad.frontend.api.http.server.timed_connection import ConnectionLimits
from tetrad.services.log import get_logger
from tetrad.services.rpc.listening import warn_if_open
from tetrad.services.tls.identity import Identity, TlsFiles
from tetrad.services.unix_listener import UnixListener

log = get_logger()

_BACKLOG = 2048
# Seconds for connections that are still open after the drain to send their last bytes.
_CLOSE_TIMEOUT_S = 1
# Seconds for requests of aborted connections to end.
_ABORT_TIMEOUT_S = 0.2
# Turns of the event loop after which connections that were accepted before the listener closed are known.
_TURNS_TO_ACCEPT = 3


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers (process.py has them) and without polling, while it serves and when it ends."""

    def __init__(self, config: uvicorn.Config, retirement: Retirement) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()
        self._retirement = retirement

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def main_loop(self) -> None:
        """Wait until the server stops."""
        await self.stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listener, idle connections at once and busy ones after their response, then end the application."""
        for closed in (*self.servers, *(sockets or ())):
            closed.close()
        for _ in range(_TURNS_TO_ACCEPT):
            await asyncio.sleep(0)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = self.server_state.tasks
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._retirement.wait_over()
                while tasks:
                    await asyncio.wait(tasks)
        except TimeoutError:
            open_ = len(self.server_state.connections)
            log.warning("http.close_timed_out", num_connections=open_, num_requests=len(tasks), timeout_s=_CLOSE_TIMEOUT_S)
            for connection in list(self.server_state.connections):
                connection.transport.abort()  # a request whose body is incomplete ends as if its client had left
            if tasks:
                await asyncio.wait(tasks, timeout=_ABORT_TIMEOUT_S)
            for task in tasks:
                task.cancel()
        await self.lifespan.shutdown()


class HttpServer:
    """Serves an application.

    Args:
        app: the application that answers requests.
        host: address to bind.
        port: port to bind; 0: any free port.
        uds: path of a Unix socket to bind in place of host and port; None: no such socket.
        fd: descriptor of a bound socket, on which other processes may listen, too; None: bind a new one.
        keep_alive_timeout_s: maximum seconds that idle connections stay open.
        limits: the limits of each connection.
        tls: identity of the server; None: plain HTTP.
        knows_callers: whether callers need keys or certificates.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        keep_alive_timeout_s: int,
        limits: ConnectionLimits,
        uds: Path | None = None,
        fd: int | None = None,
        tls: TlsFiles | None = None,
        knows_callers: bool = False,
    ) -> None:
        self._slow_client_timeout_s = limits.slow_client_timeout_s
        self._tls = tls
        self._knows_callers = knows_callers
        self._host = host
        self._port = port
        self._uds = uds
        self._unix: UnixListener | None = None
        self._fd = fd
        self._retirement = Retirement()
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
            http=connection_type(limits, self._retirement),
            server_header=False,
            date_header=False,
            timeout_keep_alive=keep_alive_timeout_s,
        )
        config.load()
        if tls is not None:
            config.ssl = Identity(tls).server_context()
        self._server = _Uvicorn(config, self._retirement)
        self._task: asyncio.Task[None] | None = None
        self.port = port

    async def start(self) -> None:
        """Bind and serve; Unavailable if the address is in use."""
        bound = self._bind() if self._fd is None else socket.socket(fileno=self._fd)
        tune(bound, self._slow_client_timeout_s)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
        if self._uds is None:
            self.port = bound.getsockname()[1]
        address = f"{self._host}:{self.port}" if self._uds is None else f"unix:{self._uds}"
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]), name="http server")
        log.info("http.started", address=address)
        warn_if_open(address, callers_are_known=self._knows_callers, is_encrypted=self._tls is not None)

    def _bind(self) -> socket.socket:
        if self._uds is None:
            return bind(self._host, self._port)
        self._unix = UnixListener(self._uds)
        return self._unix.socket

    def close_connections_with_answers(self) -> None:
        """Send `Connection: close` with every response from now on."""
        self._retirement.begin()

    async def retire(self) -> None:
        """Accept no new connections, close each existing one with its next answer, and wait until none is left."""
        for listener in self._server.servers:
            listener.close()
        self._retirement.begin()
        await self._retirement.wait_over()

    async def stop(self) -> None:
        """Close the listener, then idle connections at once and busy ones after their response."""
        self._server.stopping.set()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        if self._unix is not None:
            self._unix.close()
        log.info("http.stopped")
