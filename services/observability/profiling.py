"""Profiling: records a trace (trace.py) of a running service, from StartProfile to StopProfile, as a file for Perfetto."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tetrad.services.errors import AlreadyExists, FailedPrecondition, InvalidRequest, NotFound
from tetrad.services.hub.model_files import CacheSettings
from tetrad.services.observability.trace import Points, Recording

# A file name has at most 255 bytes, and the service and the time follow the prefix.
_MAX_PREFIX_BYTES = 200


class StepProfiler:
    """Records a service's calls, at most one recording at a time.

    Args:
        service: name of the service, for the trace and the names of files.
        directory: directory of the files; made on first use.
        find_points: returns the calls to record; called at the start of a recording.
    """

    def __init__(self, service: str, directory: Path, find_points: Callable[[], Points]) -> None:
        self._service, self._directory, self._find_points = service, directory, find_points
        self._recording: Recording | None = None
        self._path = directory

    def start(self, prefix: str) -> None:
        """Start a recording. Raises AlreadyExists during a recording, FailedPrecondition without a writable directory."""
        if self._recording is not None:
            raise AlreadyExists("A profile is being recorded; stop it first.")
        self._path = profile_path(self._directory, prefix, self._service)
        self._recording = Recording(self._service, self._find_points())

    def stop(self) -> Path:
        """End the recording and return the path of its trace. Writing may take a second.

        Raises:
            NotFound: there is no recording.
            FailedPrecondition: the trace cannot be written, for example on a full disk. The recording has ended.
        """
        if self._recording is None:
            raise NotFound("No profile is being recorded; start one first.")
        recording, self._recording, path = self._recording, None, self._path
        try:
            recording.end(path)
        except OSError as error:
            raise not_written(path, error.strerror or str(error)) from error
        return path

    async def stop_aside(self) -> list[str]:
        """Call `stop` in a thread, so that the event loop continues; return the path as a list."""
        return [str(await asyncio.to_thread(self.stop))]


async def stop_all(*stops: Awaitable[list[str]]) -> list[str]:
    """Wait for all services and return the paths of those that recorded; a restarted service does not record.

    Raises:
        NotFound: no service recorded.
        TetradError: the error of the first service that failed for another reason; all recordings have ended.
    """
    results = await asyncio.gather(*stops, return_exceptions=True)
    errors = [each for each in results if isinstance(each, BaseException)]
    failures = [error for error in errors if not isinstance(error, NotFound)]
    if failures or len(errors) == len(results):
        raise (failures or errors)[0]
    return [path for each in results if not isinstance(each, BaseException) for path in each]


def not_written(path: Path, reason: str) -> FailedPrecondition:
    """Return the error for a profile that cannot be written."""
    return FailedPrecondition(f"The profile {path} cannot be written: {reason}.")


def profile_directory(setting: str) -> Path:
    """Return the directory of a service's profiles: its setting, or one in the cache directory if that is empty."""
    return Path(setting) if setting else CacheSettings().directory() / "profiles"


def profile_path(directory: Path, prefix: str, service: str) -> Path:
    """Return the path of a new profile; make its directory.

    Raises:
        InvalidRequest: the prefix cannot be the beginning of a file name.
        FailedPrecondition: the directory cannot be made.
    """
    if Path(prefix).name != prefix or not prefix.isprintable():
        raise InvalidRequest(f"The prefix {prefix[:_MAX_PREFIX_BYTES]!r} must be a plain file name.", field="prefix")
    if (size := len(prefix.encode())) > _MAX_PREFIX_BYTES:
        raise InvalidRequest(f"The prefix has {size} bytes; at most {_MAX_PREFIX_BYTES} are allowed.", field="prefix")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedPrecondition(f"Profiles cannot be written to {directory} (profile_dir): {error.strerror}.") from error
    return directory.resolve() / f"{prefix or 'profile'}-{service}-{time.time_ns()}.json"
