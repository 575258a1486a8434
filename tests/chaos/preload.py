"""Preload: changes the wall clock and the disk of each service from outside while it runs.

Compiles preload.c once and gives the environment variables that load it into a process. A service is identified by the module
it runs.
"""

import os
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("preload.c")
_FIELDS = struct.Struct("qq")  # clock_offset_ns, disk_errno; see preload.c
_CLOCK, _DISK = 0, 8


class Preload:
    """The controls of several programs.

    Args:
        directory: for the library and the controls; must outlive the processes.
        modules: that may be controlled ("tetrad.frontend").
    """

    def __init__(self, directory: Path, modules: tuple[str, ...]) -> None:
        self._controls = directory / "controls"
        self._library = directory / "preload.so"
        command = [
            "gcc",
            "-O2",
            "-Wall",
            "-Wno-nonnull-compare",
            "-shared",
            "-fPIC",
            str(_SOURCE),
            "-o",
            str(self._library),
            "-ldl",
        ]
        subprocess.run(command, check=True)
        self._controls.mkdir()
        for module in modules:
            (self._controls / module).write_bytes(_FIELDS.pack(0, 0))

    def environment(self) -> Mapping[str, str]:
        """Return the variables that a process and its children need."""
        return {"LD_PRELOAD": str(self._library), "CHAOS_CONTROLS": str(self._controls)}

    def set_clock(self, module: str, offset_s: float) -> None:
        """Step the wall clock of a program's processes: it is then ahead of the real one by `offset_s` seconds."""
        self._set(module, _CLOCK, round(offset_s * 1e9))

    def set_disk_errno(self, module: str, number: int) -> None:
        """Let whatever a program's processes write to files fail with this error; 0: no more."""
        self._set(module, _DISK, number)

    def _set(self, module: str, offset: int, value: int) -> None:
        fd = os.open(self._controls / module, os.O_WRONLY)
        try:
            os.pwrite(fd, struct.pack("q", value), offset)
        finally:
            os.close(fd)
