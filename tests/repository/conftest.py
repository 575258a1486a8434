import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """Return a runner of programs in a fresh interpreter: source -> what it printed."""

    def run(source: str) -> str:
        return subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout

    return run
