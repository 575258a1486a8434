"""Under `ulimit -v`: a stack that cannot start says why in one line, and one that can takes a smaller KV cache."""

import subprocess
import sys

import pytest

from tetrad.stack.address_space import LEAST_BYTES


@pytest.mark.parametrize(
    ("limit_bytes", "text"),
    [
        (LEAST_BYTES - 1, "limit on address space is 1199 MiB; the worker needs 1200 MiB"),
        (3 << 29, "ulimit -v"),
    ],
    ids=["too little for any model", "too little for this model"],
)
def test_a_start_without_the_memory_is_one_line_and_code_78(smollm2, limit_bytes, text):
    command = [sys.executable, "-m", "tetrad.cli", "serve", str(smollm2), "--device", "cpu", "--threads", "1", "--port", "0"]
    # The shell sets the limit: Python code between fork and exec is not safe in a process with gRPC's threads.
    result = subprocess.run(
        ["sh", "-c", f'ulimit -v {limit_bytes >> 10}; exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=120,
    )

    # Lines with a time say how far the start is.
    lines = [line for line in result.stderr.splitlines() if not line.startswith("[")]
    assert len(lines) == 1, result.stderr
    [line] = lines
    assert line.startswith("tetrad: ")
    assert text in line
    assert result.returncode == 78
