"""The run over planted bugs: each bug meets the tests that call its function, and one that never ends is found."""

import json
import os
import subprocess
import sys

import pytest

from tests.mutants.tree import ROOT

# As mutmut writes it.
REWRITTEN = """
from mutmut.mutation.trampoline import wrap_in_trampoline as _mutmut_mutated, MutantDict
mutants_x_double__mutmut: MutantDict = {}
mutants_x_unused__mutmut: MutantDict = {}
mutants_xǁCounterǁcount__mutmut: MutantDict = {}

@_mutmut_mutated(mutants_x_double__mutmut)
def double(number, times=2):
    return times * number
def x_double__mutmut_orig(number, times=2):
    return times * number
def x_double__mutmut_1(number, times=3):
    return times * number
def x_double__mutmut_2(number, times=2):
    while True:
        pass
mutants_x_double__mutmut["_mutmut_orig"] = x_double__mutmut_orig
mutants_x_double__mutmut["x_double__mutmut_1"] = x_double__mutmut_1
mutants_x_double__mutmut["x_double__mutmut_2"] = x_double__mutmut_2

@_mutmut_mutated(mutants_x_unused__mutmut)
def unused():
    return 1
def x_unused__mutmut_1():
    return 2
mutants_x_unused__mutmut["x_unused__mutmut_1"] = x_unused__mutmut_1

class Counter:
    @_mutmut_mutated(mutants_xǁCounterǁcount__mutmut)
    def count(self, step=1):
        return [step]
    def xǁCounterǁcount__mutmut_1(self, step=1):
        return [step, 2]
mutants_xǁCounterǁcount__mutmut["xǁCounterǁcount__mutmut_1"] = Counter.xǁCounterǁcount__mutmut_1
"""
TESTS = """
from planted import Counter, double

def test_double():
    assert double(4) == 8

def test_count():
    assert Counter().count()[0] == 1
"""


def look(directory, tests, *names):
    """Return what became of the bugs, and the output of the tests."""
    (directory / "planted.py").write_text(REWRITTEN)
    (directory / "test_planted.py").write_text(tests)
    results = (directory / "results").open("w+")
    request = {
        "names": [f"planted.{name}" for name in names],
        "jobs": 2,
        "tests": ["test_planted.py"],
        "results": results.fileno(),
    }
    (directory / "request.json").write_text(json.dumps(request))
    command = [sys.executable, ROOT / "tests/mutants/warm_run.py", "request.json"]
    environment = {**os.environ, "PYTHONPATH": str(directory), "PYTHONSAFEPATH": "1", "MUTANTS_SPARE_S": "1"}
    with results:
        done = subprocess.run(
            command, cwd=directory, env=environment, pass_fds=[results.fileno()], capture_output=True, text=True
        )  # fmt: skip
        results.seek(0)
        told = dict(json.loads(line) for line in results)
    return {name.removeprefix("planted."): status for name, status in told.items()}, done


def test_bugs_that_tests_see_are_found_and_others_survive(tmp_path):
    names = ["x_double__mutmut_1", "x_double__mutmut_2", "x_unused__mutmut_1", "xǁCounterǁcount__mutmut_1"]

    found, _ = look(tmp_path, TESTS, *names)

    assert found == dict(zip(names, ["found", "found", "no tests", "survived"], strict=True))


@pytest.mark.parametrize("tests", ["def test_false():\n    assert False\n", "import nothing_of_this_name\n"])
def test_tests_that_fail_without_a_bug_are_an_error(tmp_path, tests):
    found, done = look(tmp_path, tests, "x_double__mutmut_1")

    assert found == {}
    assert done.returncode != 0
