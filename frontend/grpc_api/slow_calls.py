"""Slow calls: ends a streaming call whose client takes none of its messages for too long, so that its request is aborted.

gRPC holds a handler up while the client's window is full, for ever if need be. What the engine brings in the meantime waits in
the request's collector, merged. Knows no messages.
"""

import asyncio
from types import TracebackType
from typing import Self

from tetrad.services.idle_timer import IdleTimer
from tetrad.services.log import get_logger

log = get_logger()


class SlowCall:
    """Watches one handler, in whose task it is made; a context manager around its messages.

    Args:
        timeout_s: how long a message may wait to be taken.
    """

    def __init__(self, timeout_s: float) -> None:
        self._handler = asyncio.current_task()
        self._timer = IdleTimer(timeout_s, self._on_idle)
        self._is_writing = False

    def begin(self) -> None:
        """A message is handed to gRPC."""
        self._timer.note()
        self._is_writing = True

    def end(self) -> None:
        """It was taken."""
        self._is_writing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._timer.stop()

    def _on_idle(self) -> None:
        if self._is_writing and self._handler is not None:
            log.info("grpc.slow_client_dropped")
            self._handler.cancel()
