"""Memory cgroup: takes memory from a process that runs, so that the kernel kills it at its next larger allocation.

Speaks both versions of the kernel's interface. Knows processes by their ids only. Invariant: a group is removed at the end of
the block that made it.
"""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


def why_not() -> str | None:
    """Return why no memory cgroup can be made, or None if one can."""
    parent, limit = _place()
    probe = parent / f"tetrad-chaos-{uuid.uuid4().hex[:8]}"
    try:
        probe.mkdir()
        try:
            (probe / limit).write_text(str(1 << 30))
        finally:
            probe.rmdir()
    except OSError as error:
        return f"no memory cgroup can be made in {parent}: {error.strerror}"
    return None


@contextlib.contextmanager
def starved(pid: int, size_bytes: int) -> Iterator[None]:
    """Let a process have so many further bytes inside the block; where that is not enough, the kernel kills it.

    Version 1 counts what is allocated from then on; version 2 what the process has already, as well: it is killed at once.
    """
    parent, limit = _place()
    home = _home(pid)
    group = parent / f"tetrad-chaos-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        (group / limit).write_text(str(size_bytes))
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for survivor in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (home / "cgroup.procs").write_text(survivor)
        with contextlib.suppress(OSError):  # a process that ends may stay in it for a moment
            group.rmdir()


def _place() -> tuple[Path, str]:
    """Return where groups are made, and the name of the file with the limit."""
    if _V1.is_dir():
        return _V1, "memory.limit_in_bytes"
    return _V2, "memory.max"


def _home(pid: int) -> Path:
    """Return the group that a process is in."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if _V1.is_dir() and "memory" in controllers.split(","):
            return _V1 / path.lstrip("/")
        if not _V1.is_dir() and not controllers:
            return _V2 / path.lstrip("/")
    return _place()[0]
