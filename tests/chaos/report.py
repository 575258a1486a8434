"""Report: prints a chaos run: progress while it runs, tables at the end, and the data for debugging on failure."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.chaos.checks import StackState
from tests.chaos.load import Failure, Tally
from tests.chaos.recovery import RecoveryTimes, Struck

_MAX_FAILURES_SHOWN = 5
_MAX_SHOWN_CHARS = 4000


def say(text: str = "") -> None:
    """Print a line at once, where a person or a log sees it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_progress(elapsed_s: float, duration_s: float, tally: Tally, struck: Sequence[Struck]) -> None:
    """Print how far the run is."""
    kills = sum(each.fault.kind == "kill" for each in struck)
    bad = len(tally.failures)
    say(
        f"{elapsed_s:5.0f} of {duration_s:.0f} s: {len(struck)} faults, {kills} of them kills; {tally.num_asked} requests, "
        f"{tally.verdicts['equal']} answers equal, {bad} not; {tally.num_retries} retries"
    )


def say_faults(struck: Sequence[Struck]) -> None:
    """Print how often each fault struck."""
    counts = Counter(each.fault.kind for each in struck)
    kills = Counter(each.fault.target for each in struck if each.fault.kind == "kill")
    say("Faults:  " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    if kills:
        say("Kills:   " + ", ".join(f"{count} {name}" for name, count in sorted(kills.items())))


def say_tally(tally: Tally) -> None:
    """Print what clients saw."""
    verdicts = tally.verdicts
    say(
        f"Answers: {verdicts['equal']} equal, {verdicts['lost']} lost, {verdicts['duplicated']} duplicated, "
        f"{verdicts['different']} different; {tally.num_left} clients left early; "
        f"{tally.num_retries} retries after a killed frontend; longest {tally.longest_s:.1f} s"
    )


def say_recovery(times: Mapping[str, RecoveryTimes], silence: tuple[float, Struck] | None) -> None:
    """Print the table of recovery times, and the longest silence of all."""
    say(f"{'':14} {'':5}   tokens flow again  longest pause of a stream")
    say(f"{'killed':<14} {'kills':>5}   median s   max s   median s   max s    not measured: too near to another fault")
    for name, each in times.items():
        measured = (
            "".join(f"{middle:11.2f} {top:7.2f}" for middle, top in (each.again_s, each.pause_s)) if each.measured else ""
        )
        say(f"{name:<14} {len(each.measured) + each.num_unmeasured:5} {measured:38}    {each.num_unmeasured}")
    if silence is not None:
        say(f"Longest time without tokens: {silence[0]:.1f} s, behind{silence[1].fault}")


def say_states(before: StackState, after: StackState) -> None:
    """Print what each service holds, before and after."""
    say(f"{'service':<14} {'MiB':>15} {'descriptors':>13} {'threads':>9}   {'restarted'}")
    for name, then in before.processes.items():
        now = after.processes.get(name)
        if now is not None:
            say(
                f"{name:<14} {then.rss_bytes / 2**20:6.1f} > {now.rss_bytes / 2**20:6.1f} {then.num_fds:5} > {now.num_fds:5} "
                f"{then.num_threads:3} > {now.num_threads:3}   {'yes' if then.pid != now.pid else 'no'}"
            )


def say_failures(failures: Sequence[Failure]) -> None:
    """Print requests that went wrong: what was asked, what should have come, what came."""
    for failure in failures[:_MAX_FAILURES_SHOWN]:
        outcome = failure.outcome
        say(f"\n{failure.verdict.upper()}: {outcome.request.name}: {outcome.error or 'the answer is not the same'}")
        say(f"  took {outcome.took_s:.1f} s, {outcome.num_retries} retries, left early: {outcome.left}")
        say(f"  request  POST {outcome.request.path} {_short(json.dumps(outcome.request.body))}")
        say(f"  expected {_short(json.dumps(asdict(failure.expected)))}")
        say(f"  came     {_short(json.dumps(asdict(outcome.answer)))}")
        say(f"  first difference: {_first_difference(asdict(failure.expected), asdict(outcome.answer))}")
    if len(failures) > _MAX_FAILURES_SHOWN:
        say(f"\n... and {len(failures) - _MAX_FAILURES_SHOWN} more")


def say_schedule(struck: Sequence[Struck]) -> None:
    """Print the faults that struck, in order."""
    say("\nSchedule up to here:")
    for each in struck:
        say(f"  {each.fault}")


def _first_difference(expected: Any, came: Any, path: str = "answer") -> str | None:
    """Return where two nested values begin to differ, and how; None if they do not."""
    if isinstance(expected, dict) and isinstance(came, dict) and expected.keys() == came.keys():
        pairs = [(f"{path}[{key!r}]", expected[key], came[key]) for key in expected]
    elif isinstance(expected, (list, tuple)) and isinstance(came, (list, tuple)) and len(expected) == len(came):
        pairs = [(f"{path}[{index}]", *pair) for index, pair in enumerate(zip(expected, came, strict=True))]
    else:
        return None if expected == came else f"{path}: expected {_short(repr(expected))}, came {_short(repr(came))}"
    return next(filter(None, (_first_difference(each, other, place) for place, each, other in pairs)), None)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
