"""Profiler: torch's, over the compute thread, from StartProfile to StopProfile; writes a Chrome trace.

Of a worker without torch (the simulated device), services/observability/profiling.py records the calls of a step instead.
"""

from pathlib import Path
from typing import Any, Protocol

from tetrad.services.errors import AlreadyExists, NotFound
from tetrad.services.observability.profiling import profile_path


class Profiler(Protocol):
    """At most one recording; its methods run on the compute thread, because that is whose work it records."""

    def start(self, prefix: str) -> None:
        """Begin to record; AlreadyExists if it does, FailedPrecondition if there is nowhere to write."""

    def stop(self) -> Path:
        """End the recording and return the path of its trace; NotFound if there is none."""


class TorchProfiler:
    """See Profiler.

    Args:
        directory: where traces go; made when first needed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recording: Any = None
        self._path = directory

    def start(self, prefix: str) -> None:
        """Begin to record."""
        if self._recording is not None:
            raise AlreadyExists("A profile is being recorded; call StopProfile first.")
        self._path = profile_path(self._directory, prefix, "worker")
        import torch.profiler  # a second to import, and seldom needed

        # The processor, and the GPU's kernels where there is one.
        activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call] # torch leaves it bare
        self._recording = torch.profiler.profile(activities=activities)
        self._recording.start()

    def stop(self) -> Path:
        """End the recording and write it."""
        if self._recording is None:
            raise NotFound("No profile is being recorded; call StartProfile first.")
        recording, self._recording = self._recording, None
        recording.stop()
        recording.export_chrome_trace(str(self._path))
        return self._path
