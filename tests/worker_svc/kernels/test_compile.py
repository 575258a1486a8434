"""Every kernel compiles to machine code for Ampere and Hopper, on a machine without either.

`make test` compiles one form of each for Hopper; `make test-kernels` and `make exhaustive-test` compile all forms for both.
What was compiled stays in pytest's cache: Triton finds it by source, options and its own version, and compiles what is new.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grids import grid
from tetrad.worker_svc import kernels

ONLY_FROM_89 = {"quantize_rows_kernel"}
"""Kernels that write fp8 (e4m3), which Ampere does not support."""

PROGRAM = Path(__file__).parent / "compile_all.py"


@pytest.mark.parametrize(
    ("capability", "forms"), grid([(90, "one"), (80, "all"), (90, "all")], lambda _, forms: forms == "one")
)
def test_every_kernel_compiles(capability, forms, pytestconfig):
    known = pytestconfig.cache.mkdir("compiled-kernels")
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(known)}
    call = [sys.executable, str(PROGRAM), str(capability), forms]
    ran = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stderr
    compiled = {line.split()[0] for line in ran.stdout.splitlines() if int(line.split()[-1]) > 1000}
    assert compiled == all_kernels() - (ONLY_FROM_89 if capability < 89 else set())


def all_kernels() -> set[str]:
    """Return the names of the kernels; other functions under @triton.jit are parts of them."""
    found = set()
    for path in Path(kernels.__file__).parent.glob("*.py"):
        found |= set(re.findall(r"@triton\.jit(?:\(.*\))?\ndef (\w+_kernel)\b", path.read_text()))
    return found
