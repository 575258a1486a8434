"""Process: runs the main coroutine of a service: event loop, signals, lifeline, exit codes.

Exit codes: 0 after a clean drain; 78 (EX_CONFIG) if a restart cannot succeed (no such model, a broken file), with one line on
stderr; 1 for any other error, after which a supervisor may restart the process.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, NoReturn

import uvloop

from tetrad.services.errors import FailedPrecondition, InvalidRequest, NotFound, TetradError, Unsupported
from tetrad.services.log import configure_logging, get_logger
from tetrad.services.observability.metrics import note_build, serve_metrics
from tetrad.services.observability.trace import Points, tracing
from tetrad.services.parent_end import continue_at_parents_end
from tetrad.services.settings import ServiceSettings
from tetrad.services.timers.garbage import collect_as_usual
from tetrad.services.timers.loop_watchdog import LoopWatchdog

EXIT_PERMANENT = 78
_PERMANENT = (InvalidRequest, NotFound, FailedPrecondition, Unsupported)
_LIFELINE_GRACE_S = 3.0

log = get_logger()


def run_service(
    name: str,
    settings: ServiceSettings,
    main: Callable[[asyncio.Event], Awaitable[None]],
    *,
    on_retire: Callable[[], None] | None = None,
    trace_points: Callable[[], Points] = tuple,
) -> NoReturn:
    """Run a service until a signal stops it, and exit the process.

    Args:
        name: name of the service for logs ("worker").
        settings: settings of the service, of its logs and of its metrics.
        main: serves until the event is set, then drains. It must wait for the event as soon as it may have work to finish: a
            service that does not wait for it when the signal arrives is still starting, and is cancelled.
        on_retire: called on SIGUSR1, which orders the service to end when all work is done, without a limit of time. SIGTERM
            still stops such a process.
        trace_points: returns the calls to trace; called if the settings enable a trace.
    """
    configure_logging(name, level=settings.log_level, json=settings.log_json)
    note_build(name)
    close_metrics = serve_metrics(settings.metrics_host, settings.metrics_port)
    if settings.lifeline_fd is not None:
        continue_at_parents_end()
        threading.Thread(target=_watch_lifeline, args=(settings.lifeline_fd,), daemon=True, name="lifeline").start()
    try:
        with tracing(name, settings.trace_path, trace_points):
            retire = None if on_retire is None else partial(_retire, close_metrics, on_retire)
            uvloop.run(_main(main, retire, LoopWatchdog(settings.loop_stall_timeout_s)))
    except TetradError as error:
        sys.stderr.write(f"tetrad {name}: {error.message}\n")
        sys.exit(exit_code_of(error))
    sys.exit(0)


def exit_code_of(error: TetradError) -> int:
    """Return the exit code of a process that an error ends."""
    return EXIT_PERMANENT if isinstance(error, _PERMANENT) else 1


async def _main(
    main: Callable[[asyncio.Event], Awaitable[None]], on_retire: Callable[[], None] | None, watchdog: LoopWatchdog
) -> None:
    shutdown = _Shutdown()
    loop = asyncio.get_running_loop()
    if on_retire is not None:
        loop.add_signal_handler(signal.SIGUSR1, on_retire)
    serving = asyncio.ensure_future(main(shutdown))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, shutdown, serving)
    watchdog.start()
    try:
        await serving
    except asyncio.CancelledError:
        if not shutdown.is_set():
            raise
        # A thread in native code cannot be stopped; a normal exit would wait for it or crash.
        log.info("process.stopped_while_starting")
        sys.stderr.flush()
        os._exit(0)
    finally:
        watchdog.stop()


def _retire(close_metrics: Callable[[], None], on_retire: Callable[[], None]) -> None:
    """Leave the port of the metrics to the successor, and end when all work is done."""
    close_metrics()
    on_retire()


class _Shutdown(asyncio.Event):
    """The event of the order to stop. `is_heeded`: whether the service has begun to wait for it."""

    is_heeded = False

    async def wait(self) -> Literal[True]:
        """Wait for the order; the first call means that the service has started."""
        if not self.is_heeded:
            self.is_heeded = True
            collect_as_usual()  # a search that visits all modules takes 0.1 s, with torch 0.3 s
        return await super().wait()


def _on_signal(shutdown: _Shutdown, serving: asyncio.Future[None]) -> None:
    if shutdown.is_set():
        log.warning("process.killed_by_second_signal")
        os._exit(1)
    shutdown.set()
    if not shutdown.is_heeded:
        serving.cancel()


def _watch_lifeline(fd: int) -> None:
    """Wait until the parent's end of the pipe closes, for any reason; then drain, and exit if that takes too long."""
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_LIFELINE_GRACE_S)
    os._exit(1)
