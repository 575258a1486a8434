"""The settings of all fuzzing here: a fixed number of the same examples in `make test`, else random ones for a given time.

TEST_FUZZ_SECONDS is the time of one test; see `make fuzz-files` and `make fuzz-services`.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("TEST_FUZZ_SECONDS", "0"))
_EXAMPLES_A_ROUND = 500

Fuzz = Callable[..., int]


@pytest.fixture
def fuzz(capsys: pytest.CaptureFixture[str]) -> Fuzz:
    """Calls a function with what strategies make, `examples` times or for TEST_FUZZ_SECONDS; gives the number of calls."""

    def run(check: Callable[..., None], *strategies: st.SearchStrategy[Any], examples: int) -> int:
        calls = 0

        def count(values: tuple[Any, ...]) -> None:
            nonlocal calls
            calls += 1
            check(*values)

        def round_of(number: int, seed_value: int | None) -> None:
            chosen = settings(
                max_examples=number,
                derandomize=seed_value is None,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            )
            test = chosen(given(st.tuples(*strategies))(count))
            (test if seed_value is None else seed(seed_value)(test))()

        if not SECONDS:
            round_of(examples, None)
            return calls
        start = time.monotonic()
        while time.monotonic() < start + SECONDS:
            seed_value = random.SystemRandom().getrandbits(64)
            try:
                round_of(_EXAMPLES_A_ROUND, seed_value)
            except BaseException as error:
                error.add_note(f"hypothesis seed: {seed_value}")
                raise
        with capsys.disabled():
            sys.stdout.write(f"\n{check.__name__}: {calls} examples, {calls / (time.monotonic() - start):.0f} a second\n")
        return calls

    return run
