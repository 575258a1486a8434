"""Profiling: a trace (trace.py) of a running service, from StartProfile to StopProfile, as a file that Perfetto shows."""

import time
from collections.abc import Callable
from pathlib import Path

from tetrad.services.errors import AlreadyExists, FailedPrecondition, InvalidRequest, NotFound
from tetrad.services.trace import Points, Recording


class StepProfiler:
    """At most one recording of a service's calls.

    Args:
        service: its name, for the trace and the names of files.
        directory: where they go; made when first needed.
        find_points: names the calls; called with the first recording.
    """

    def __init__(self, service: str, directory: Path, find_points: Callable[[], Points]) -> None:
        self._service, self._directory, self._find_points = service, directory, find_points
        self._recording: Recording | None = None
        self._path = directory

    def start(self, prefix: str) -> None:
        """Begin to record; AlreadyExists if it does, FailedPrecondition if there is nowhere to write."""
        if self._recording is not None:
            raise AlreadyExists("A profile is being recorded; stop it first.")
        self._path = profile_path(self._directory, prefix, self._service)
        self._recording = Recording(self._service, self._find_points())

    def stop(self) -> Path:
        """End the recording and return the path of its trace; NotFound if there is none."""
        if self._recording is None:
            raise NotFound("No profile is being recorded; start one first.")
        recording, self._recording = self._recording, None
        recording.end(self._path)
        return self._path


def profile_path(directory: Path, prefix: str, service: str) -> Path:
    """Return where a profile is to be written; its directory is there.

    Raises:
        InvalidRequest: the prefix is more than a part of a file's name.
        FailedPrecondition: the directory cannot be made.
    """
    if Path(prefix).name != prefix:
        raise InvalidRequest(f"The prefix {prefix!r} must be a plain file name.", field="prefix")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedPrecondition(f"Profiles cannot be written to {directory} (profile_dir): {error.strerror}.") from error
    return directory.resolve() / f"{prefix or 'profile'}-{service}-{time.time_ns()}.json"
