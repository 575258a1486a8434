"""Profiling: records this frontend, the engine cores and their workers at the same time, each in its own file.

Called by the operator endpoints. Each service writes its file on its own machine; the call returns the paths.
"""

import asyncio
from collections.abc import Callable, Iterable

from tetrad.frontend.engine.admin_client import EngineAdminClient
from tetrad.services.observability.profiling import StepProfiler, stop_all


class Profiling:
    """Starts and stops the recording of all services.

    Args:
        own: the profiler of this frontend.
        engines: returns the engine clients of each model that is served now.
    """

    def __init__(self, own: StepProfiler, engines: Callable[[], Iterable[EngineAdminClient]]) -> None:
        self._own = own
        self._engines = engines

    async def start(self, prefix: str = "", delay: int = 0, most: int = 0) -> None:
        """Start to record, the workers after `delay` steps and for `most` steps; 0: until the end.

        Raises AlreadyExists during a recording, FailedPrecondition without the admin ports.
        """
        self._own.start(prefix)
        try:
            await asyncio.gather(*(engines.start_profile(prefix, delay, most) for engines in self._engines()))
        except BaseException:  # also if the caller has disconnected: the recording would never be stopped
            self._own.stop().unlink()
            raise

    async def stop(self) -> list[str]:
        """Stop the recording, also one that another call started, and return the files' paths; NotFound if there is none."""
        return await stop_all(self._own.stop_aside(), *(engines.stop_profile() for engines in self._engines()))
