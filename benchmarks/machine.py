"""Machine: the facts of the machine that every report states, without host names and paths."""

import os
import platform
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def facts() -> str:
    """Return one line: cores, their widest vector units, memory, versions, the commit that was measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores ({platform.machine()}, {cpu_class()}), {memory:.0f} GiB, Python {platform.python_version()}, "
        f"commit {commit()}"
    )


def cpu_class() -> str:
    """Return the widest vector units that matrix products can use, by the flag that the Linux kernel shows."""
    flags = _cpu_flags()
    units = [
        ("amx_tile", "AMX"),
        ("avx512_bf16", "AVX-512 with bf16"),
        ("avx512_vnni", "AVX-512 with VNNI"),
        ("avx512f", "AVX-512"),
        ("avx_vnni", "AVX2 with VNNI"),
        ("avx2", "AVX2"),
        ("asimd", "NEON"),
    ]
    return next((name for flag, name in units if flag in flags), "no vector units known here")


def commit() -> str:
    """Return the short hash of the commit, with "+" if the tree has uncommitted changes; "unknown" outside a checkout."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        # Files that a benchmark writes do not change the measured code.
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}{'+' if changed else ''}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    found = (line.partition(":")[2].split() for line in lines if line.partition(":")[0].strip() in ("flags", "Features"))
    return set(next(found, ()))
