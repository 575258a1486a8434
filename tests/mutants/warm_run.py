"""Looks for planted bugs: `python warm_run.py REQUEST` in a tree (tree.py) reads JSON, and writes a line of JSON for each bug.

pytest collects the tests once. A first child process runs all of them and notes which functions each one calls. Then each
bug has a child of its own, which runs the tests that call the bug's function, the shortest first, until one fails. A bug is
activated by giving its code to the function, so all other functions run at their full speed. Imports nothing of this
repository and needs no mutmut: the module that rewritten files import from it is replaced by one that notes their functions.
"""

import json
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TypeVar

import pytest

_SPARE_S = float(os.environ.get("MUTANTS_SPARE_S", "5"))
_MAX_SLOWDOWN = 3.0
"""Of tests that find no bug; a bug that takes longer never ends, and so is found."""
_NOTED_EVENTS = 1_000_000
"""Calls and returns of a test that are looked at: a longer test calls the same functions again and again."""
_OTHERS = 10
"""Seconds of the clock for one of processor time, at most: others may need the cores."""
_WAIT_S = 15.0
"""And that a test may wait for nothing."""

T = TypeVar("T")
Registry = dict[str, object]
"""A function's mutants by their names, with mutmut's copy of the function."""
Place = tuple[str, int]
"""File and first line of a function."""
_planted: list[tuple[FunctionType, Registry]] = []


def _keep(registry: Registry, **_: bool) -> Callable[[FunctionType], FunctionType]:
    """Note a function and the registry of its mutants, which is filled when the class is complete."""

    def decorate(function: FunctionType) -> FunctionType:
        _planted.append((function, registry))
        return function

    return decorate


def _replace_trampoline() -> None:
    trampoline = ModuleType("mutmut.mutation.trampoline")
    trampoline.wrap_in_trampoline, trampoline.MutantDict = _keep, dict  # type: ignore[attr-defined]
    sys.modules |= {"mutmut": ModuleType("mutmut"), "mutmut.mutation": ModuleType("mutmut.mutation")}
    sys.modules["mutmut.mutation.trampoline"] = trampoline


class WarmRun:
    """A pytest plugin that replaces the loop over tests.

    Args:
        names: of the bugs to look for.
        jobs: child processes at a time.
        results: takes a line for each bug.
    """

    def __init__(self, names: Sequence[str], jobs: int, results: int) -> None:
        self._names, self._jobs, self._results = names, jobs, results
        self._running: dict[int, str] = {}
        self._fails = False

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End at the first failure: the bug is found."""
        if report.failed and self._fails:
            os._exit(1)
        if report.failed:
            sys.stderr.write(f"{report.nodeid}:\n{report.longreprtext}\n")
            os._exit(2)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Look for all bugs."""
        bugs = {
            f"{function.__module__}.{key}": (function, mutant) for function, all_ in _planted for key, mutant in all_.items()
        }
        calls, durations = _in_child(lambda: _first_run(session.items))
        items = sorted(session.items, key=lambda item: durations[item.nodeid])
        for name in self._names:
            # A module that no test imports has no function.
            function, mutant = bugs.get(name, (None, None))
            of_bug = [item for item in items if function is not None and _place(function.__code__) in calls[item.nodeid]]
            if not of_bug:
                self._tell(name, "no tests")
                continue
            if len(self._running) == self._jobs:
                self._wait()
            pid = os.fork()
            if not pid:
                self._look(function, mutant, of_bug, durations)
            self._running[pid] = name
        while self._running:
            self._wait()
        return True

    def _look(self, function: FunctionType, mutant: object, items: list[pytest.Item], durations: dict[str, float]) -> None:
        """Activate a bug and run tests; the exit status is 0 if none fails."""
        expected_s = sum(durations[item.nodeid] for item in items)
        limit_s = int(_MAX_SLOWDOWN * expected_s + _SPARE_S + time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        mutated: FunctionType = getattr(mutant, "__func__", mutant)
        function.__code__, function.__defaults__ = mutated.__code__, mutated.__defaults__
        function.__kwdefaults__ = mutated.__kwdefaults__
        self._fails = True
        try:
            for item, following in zip(items, [*items[1:], None], strict=True):
                signal.setitimer(signal.ITIMER_REAL, _OTHERS * durations[item.nodeid] + _WAIT_S)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException:  # noqa: BLE001 - also SystemExit
            os._exit(1)
        os._exit(0)

    def _wait(self) -> None:
        pid, status = os.wait()
        name = self._running.pop(pid, None)
        if name is not None:
            self._tell(name, "survived" if os.waitstatus_to_exitcode(status) == 0 else "found")

    def _tell(self, name: str, status: str) -> None:
        os.write(self._results, f"{json.dumps([name, status])}\n".encode())


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_firstlineno


def _first_run(items: Sequence[pytest.Item]) -> tuple[dict[str, set[Place]], dict[str, float]]:
    """Run all tests; return the functions that each one calls, and the seconds of processor time that each one takes."""
    known = {_place(function.__code__) for function, _ in _planted}
    calls: dict[str, set[Place]] = {}
    durations: dict[str, float] = {}
    found: set[Place] = set()
    num_left = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal num_left
        num_left -= 1
        if not num_left:
            sys.setprofile(None)
        if event == "call" and (place := _place(frame.f_code)) in known:
            found.add(place)

    for item, following in zip(items, [*items[1:], None], strict=True):
        found.clear()
        num_left = _NOTED_EVENTS
        start = time.process_time()
        threading.setprofile(note)
        sys.setprofile(note)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        sys.setprofile(None)
        calls[item.nodeid], durations[item.nodeid] = set(found), time.process_time() - start
    return calls, durations


def _in_child(work: Callable[[], T]) -> T:
    """Return what a child process makes; this process stays as it was, without threads of tests."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(work(), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        made = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit("The tests fail without a bug.")
    result: T = pickle.loads(made)
    return result


def main() -> int:
    """Run as the request says."""
    request = json.loads(Path(sys.argv[1]).read_text())
    _replace_trampoline()
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TEST_WALKS": "0.2"}
    run = WarmRun(request["names"], request["jobs"], request["results"])
    return int(pytest.main(["-q", "-s", "-p", "no:cacheprovider", *request["tests"]], plugins=[run]))


if __name__ == "__main__":
    sys.exit(main())
