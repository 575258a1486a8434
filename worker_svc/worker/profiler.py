"""Profiler: records the compute thread with torch's profiler, from StartProfile to StopProfile, and writes a Chrome trace.

For a worker without torch (the simulated device), services/observability/profiling.py records the calls of a step instead.
"""

from pathlib import Path
from typing import Any, Protocol

from tetrad.services.errors import AlreadyExists, NotFound
from tetrad.services.observability.profiling import not_written, profile_path


class Profiler(Protocol):
    """A profiler with at most one recording. Its methods are called on the compute thread, whose work it records."""

    def start(self, prefix: str) -> None:
        """Start a recording.

        Raises AlreadyExists during a recording, FailedPrecondition if there is no directory to write to.
        """

    def stop(self) -> Path:
        """End the recording and return the path of its trace.

        Raises NotFound if there is no recording, FailedPrecondition if the trace cannot be written.
        """


class TorchProfiler:
    """The Profiler of workers with torch; see Profiler.

    Args:
        directory: directory of the traces; created at the first recording.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recording: Any = None
        self._path = directory

    def start(self, prefix: str) -> None:
        """Start a recording; see Profiler."""
        if self._recording is not None:
            raise AlreadyExists("A profile is being recorded; call StopProfile first.")
        self._path = profile_path(self._directory, prefix, "worker")
        import torch.profiler  # a second to import, and seldom needed

        # Records the processor, and the GPU's kernels if there is a GPU.
        activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call] # torch leaves it bare
        self._recording = torch.profiler.profile(activities=activities)
        self._recording.start()

    def stop(self) -> Path:
        """End the recording and write its trace; see Profiler."""
        if self._recording is None:
            raise NotFound("No profile is being recorded; call StartProfile first.")
        recording, self._recording = self._recording, None
        recording.stop()
        recording.export_chrome_trace(str(self._path))
        if not self._path.exists():  # torch writes the reason to stderr and returns
            raise not_written(self._path, "the disk may be full, or its directory gone")
        return self._path
