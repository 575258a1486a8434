"""Profiling: records this frontend, the engine cores and their workers at the same time, in a file each.

Called by the operator's endpoints. Each service writes its file on its own machine; the call returns the paths.
"""

import asyncio
from collections.abc import Callable, Iterable

from tetrad.frontend.engine.admin_client import EngineAdminClient
from tetrad.services.observability.profiling import StepProfiler, stop_all


class Profiling:
    """The recording.

    Args:
        own: of this frontend.
        engines: returns the others, of each model that is served now.
    """

    def __init__(self, own: StepProfiler, engines: Callable[[], Iterable[EngineAdminClient]]) -> None:
        self._own = own
        self._engines = engines

    async def start(self, prefix: str = "") -> None:
        """Begin to record; AlreadyExists during a recording, FailedPrecondition without the operators' ports."""
        self._own.start(prefix)
        try:
            await asyncio.gather(*(engines.start_profile(prefix) for engines in self._engines()))
        except BaseException:  # also if the caller has disconnected: it would never be stopped
            self._own.stop().unlink()
            raise

    async def stop(self) -> list[str]:
        """End what is recorded, by whomever, and return the files' paths; NotFound if nothing is."""
        return await stop_all(self._own.stop_aside(), *(engines.stop_profile() for engines in self._engines()))
