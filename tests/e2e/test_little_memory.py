"""Under `ulimit -v`: a stack that cannot start says why in one line, and one that can takes a smaller KV cache."""

import resource
import subprocess
import sys

import pytest

from tetrad.address_space import LEAST_BYTES


@pytest.mark.parametrize(
    ("limit_bytes", "text"),
    [
        (LEAST_BYTES - 1, "limit on address space is 1199 MiB; the worker needs 1200 MiB"),
        (3 << 29, "ulimit -v"),
    ],
    ids=["too little for any model", "too little for this model"],
)
def test_a_start_without_the_memory_is_one_line_and_code_78(smollm2, limit_bytes, text):
    result = subprocess.run(
        [sys.executable, "-m", "tetrad.cli", "serve", str(smollm2), "--device", "cpu", "--threads", "1", "--port", "0"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes)),
        capture_output=True,
        text=True,
        timeout=120,
    )

    # Lines with a time say how far the start is.
    [line] = [line for line in result.stderr.splitlines() if not line.startswith("[")]
    assert line.startswith("tetrad: ")
    assert text in line
    assert result.returncode == 78
