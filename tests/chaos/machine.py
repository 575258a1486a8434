"""Machine: the features of this machine that some kinds of faults need, and the reason for each missing one.

Checked once at the start of a run, so that the run can list the faults that it leaves out.
"""

import os
import shutil
from pathlib import Path
from typing import Literal

from tests.chaos import cgroup

Need = Literal["preload", "memory cgroup", "tun"]
"""A C compiler for preload.c; a memory cgroup that can be made; a TUN device of our own."""


def why_not(need: Need | None) -> str | None:
    """Return why the machine does not have something, or None if it does."""
    if need == "preload":
        return None if shutil.which("gcc") else "there is no gcc to compile preload.c with"
    if need == "memory cgroup":
        return cgroup.why_not()
    if need == "tun":
        return _why_no_tun()
    return None


def _why_no_tun() -> str | None:
    if os.geteuid():
        return "a TUN device needs root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    return None if shutil.which("ip") else "there is no ip command (iproute2)"
