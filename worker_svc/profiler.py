"""Profiler: torch's, over the compute thread, from StartProfile to StopProfile; writes a Chrome trace."""

import time
from pathlib import Path
from typing import Any

from tetrad.services.errors import FailedPrecondition, InvalidRequest


class Profiler:
    """At most one recording; its methods run on the compute thread, because that is whose work it records.

    Args:
        directory: where traces go; made when first needed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recording: Any = None
        self._path = directory

    def start(self, prefix: str) -> None:
        """Begin to record; FailedPrecondition if it already does."""
        if self._recording is not None:
            raise FailedPrecondition("A profile is being recorded; call StopProfile first.")
        if Path(prefix).name != prefix:
            raise InvalidRequest(f"The prefix {prefix!r} must be a plain file name.", field="prefix")
        import torch.profiler  # a second to import, and seldom needed

        self._path = self._directory / f"{prefix or 'worker'}-{time.time_ns()}.json"
        self._recording = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self._recording.start()

    def stop(self) -> Path:
        """End the recording and return the path of its trace; FailedPrecondition if there is none."""
        if self._recording is None:
            raise FailedPrecondition("No profile is being recorded; call StartProfile first.")
        recording, self._recording = self._recording, None
        recording.stop()
        self._directory.mkdir(parents=True, exist_ok=True)
        recording.export_chrome_trace(str(self._path))
        return self._path
