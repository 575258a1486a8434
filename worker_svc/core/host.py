"""Host: the CPU cores and the memory available to this process, container limits included.

Reads Linux's files; other systems get Python's values.
"""

import ctypes
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from tetrad.services.models.gguf_parts import gguf_part_paths

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the number of cores in this process's affinity mask, or fewer if the container has a lower CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(_CGROUP / "cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


@dataclass(frozen=True, order=True, slots=True)
class AvailableMemory:
    """The number of bytes that a process can still allocate, and the name of the limit that applies."""

    size_bytes: int
    limited_by: str


def available_memory() -> AvailableMemory:
    """Return the memory that can be allocated without swapping and within the limits of the container and the process."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    found = [AvailableMemory(free, "the machine's free memory")]
    limit, used = _read(_CGROUP / "memory.max").strip(), _read(_CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        # The kernel can free cached pages of files, such as weight files that were read.
        taken = int(used) - _stat(_read(_CGROUP / "memory.stat"), "inactive_file")
        found.append(AvailableMemory(max(0, int(limit) - taken), "the container's memory limit"))
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        pages = _read(Path("/proc/self/statm")).split()
        taken = int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0
        found.append(AvailableMemory(max(0, space - taken), "the process's address space, ulimit -v"))
    return min(found)


def available_memory_bytes() -> int:
    """Return the size of `available_memory` in bytes."""
    return available_memory().size_bytes


def size_text(size_bytes: int) -> str:
    """Return a size as text with a unit: "1.50 GiB", "12 MiB"."""
    return f"{size_bytes / (1 << 30):.2f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / (1 << 20):.0f} MiB"


def size_on_disk(path: Path) -> int:
    """Return the size in bytes of a model's weight files: a .gguf file or its parts, or the files of a directory."""
    if not path.is_dir():
        files = gguf_part_paths(path)
    else:
        files = list(path.glob("*.safetensors")) or list(path.glob("pytorch_model*.bin"))
    return sum(file.stat().st_size for file in files if file.exists())


def give_back_memory() -> None:
    """Return memory of freed objects from the C allocator to the system; does nothing if the C library has no `malloc_trim`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _stat(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
