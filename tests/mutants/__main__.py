"""`python -m tests.mutants`: plants small bugs in the engine core, one at a time, and counts those that tests find.

Run by `make mutants`. Exit code 0: tests find at least 95 % of the effective bugs; equivalents.yaml lists the others.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from tests.mutants.groups import GROUPS, TESTS, Group
from tests.mutants.tree import Bug, Tree

WANTED = 0.95
_EQUIVALENTS = Path(__file__).with_name("equivalents.yaml")
_WARM_RUN = Path(__file__).with_name("warm_run.py")
_PROGRESS_EVERY = 50


def main() -> int:
    """Run as the flags say."""
    options = _parse()
    found, planted = Counter[str](), Counter[str]()
    for group in GROUPS:
        if options.group not in ("", group.name):
            continue
        with tempfile.TemporaryDirectory(prefix=f"mutants-{group.name}-") as directory:
            found_here, planted_here = _look(group, Tree(group, Path(directory)), options)
        for file in sorted(planted_here):
            _say(f"  {_rate(found_here[file], planted_here[file])}: {file}")
        _say(f"{_rate(found_here.total(), planted_here.total())}: {group.name}")
        found += found_here
        planted += planted_here
    _say(f"{_rate(found.total(), planted.total())}; {WANTED:.0%} are wanted")
    return 0 if found.total() >= WANTED * planted.total() else 1


def _look(group: Group, tree: Tree, options: argparse.Namespace) -> tuple[Counter[str], Counter[str]]:
    """Look for a group's bugs, or for those that are wanted; count by file those that were found, and all effective ones."""
    bugs = [bug for bug in tree.plant() if options.only in bug.name]
    if options.sample and options.sample < len(bugs):
        bugs = random.Random(options.seed).sample(bugs, options.sample)
    _say(f"{group.name}: {len(bugs)} planted bugs")
    known = {(each["file"], each["line"], each["becomes"]) for each in yaml.safe_load(_EQUIVALENTS.read_text()) or ()}
    found, planted = Counter[str](), Counter[str]()
    by_name = {bug.name: bug for bug in bugs}
    for name, status in _run(group, tree, bugs, options.jobs) if bugs else ():
        bug = by_name[name]
        if status != "found" and ((bug.file, bug.line, bug.becomes) in known or _is_unchecked_zip(bug)):
            continue
        planted[bug.file] += 1
        found[bug.file] += status == "found"
        if status != "found":
            _say(f"\n{bug.file}: {bug.name}, {status}\n  - {bug.line}\n  + {bug.becomes}")
    return found, planted


def _run(group: Group, tree: Tree, bugs: Sequence[Bug], jobs: int) -> Iterator[tuple[str, str]]:
    """Yield the name of each bug and what became of it; RuntimeError if the tests do not run."""
    reader, writer = os.pipe()
    tests = [f"{TESTS}/{name}" for name in group.tests]
    request = {"names": [bug.name for bug in bugs], "jobs": jobs, "tests": tests, "results": writer}
    path, log = tree.directory / "request.json", tree.directory / "tests.log"
    path.write_text(json.dumps(request))
    command = [sys.executable, str(_WARM_RUN), str(path)]
    num_found, start = 0, time.monotonic()
    with log.open("wb") as output, subprocess.Popen(
        command, cwd=tree.directory, env=tree.environment, pass_fds=[writer], stdout=output, stderr=output
    ):  # fmt: skip
        os.close(writer)
        with os.fdopen(reader) as lines:
            for line in lines:
                yield tuple(json.loads(line))
                num_found += 1
                if num_found % _PROGRESS_EVERY == 0:
                    _say(f"  {num_found} looked for, {time.monotonic() - start:.0f} s")
    if num_found < len(bugs):
        raise RuntimeError(f"The tests ran for {num_found} of {len(bugs)} bugs:\n{log.read_text()[-4000:]}")


def _is_unchecked_zip(bug: Bug) -> bool:
    """Return whether only an assertion of ours is gone: that two sequences are of one length."""
    plain = [re.sub(r",\s*(strict=\w+)?\)", ")", line) for line in (bug.line, bug.becomes)]
    return plain[0] == plain[1]


def _rate(found: int, planted: int) -> str:
    return f"{found:5} of {planted:5} found, {found / max(1, planted):6.1%}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=0, help="Bugs of each group, chosen at random. 0: all.")
    parser.add_argument("--seed", type=int, default=0, help="Of that choice.")
    parser.add_argument("--group", default="", choices=["", *(group.name for group in GROUPS)], help="Empty: all.")
    parser.add_argument("--only", default="", help="Part of the names of the bugs to plant, such as block_pool.")
    parser.add_argument("--jobs", type=int, default=1, help="Bugs that are looked for side by side.")
    return parser.parse_args()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
