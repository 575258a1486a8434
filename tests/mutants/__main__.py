"""`python -m tests.mutants`: plants small bugs in the engine core's heart, one at a time, and counts those that tests find.

Behind `make mutants`. Exit code 0: tests find at least 95 % of those that change anything; equivalents.yaml lists the others.
"""

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import yaml

from tests.mutants.groups import GROUPS, Group
from tests.mutants.mutmut_run import MutmutRun, Survivor
from tests.mutants.tree import make_tree

WANTED = 0.95
_EQUIVALENTS = Path(__file__).with_name("equivalents.yaml")


def main() -> int:
    """Run as the flags say."""
    options = _parse()
    found, planted = Counter[str](), Counter[str]()
    for group in GROUPS:
        if options.group not in ("", group.name):
            continue
        with tempfile.TemporaryDirectory(prefix=f"mutants-{group.name}-") as directory:
            make_tree(group, Path(directory))
            run = MutmutRun(Path(directory), options.jobs)
            _look(run, group, options)
            _count(run, found, planted)
    for file in sorted(planted):
        _say(f"{found[file]:5} of {planted[file]:5} found, {found[file] / planted[file]:6.1%}: {file}")
    score = found.total() / max(1, planted.total())
    _say(f"{found.total():5} of {planted.total():5} found, {score:6.1%}; {WANTED:.0%} are wanted")
    return 0 if score >= WANTED else 1


def _look(run: MutmutRun, group: Group, options: argparse.Namespace) -> None:
    """Plant a group's bugs, or those that are wanted of them, one at a time."""
    names = [name for name in run.plant() if options.only in name]
    if options.sample and options.sample < len(names):
        names = random.Random(options.seed).sample(names, options.sample)
    _say(f"{group.name}: {len(names)} planted bugs")
    run.run(names)


def _count(run: MutmutRun, found: Counter[str], planted: Counter[str]) -> None:
    """Count by file what was planted and found, without what changes nothing; print what survives."""
    known = yaml.safe_load(_EQUIVALENTS.read_text()) or ()
    equivalents = {(each["file"], each["line"], each["becomes"]) for each in known}
    survivors = {survivor.name: survivor for survivor in run.survivors()}
    for name in run.looked_for():
        survivor = survivors.get(name)
        if survivor is not None and _key(survivor) in equivalents:
            continue
        file = name.rpartition(".")[0].removeprefix("tetrad.").replace(".", "/") + ".py"
        planted[file] += 1
        found[file] += survivor is None
        if survivor is not None:
            _say(f"\n{survivor.file}: {name}\n  - {survivor.line}\n  + {survivor.becomes}")


def _key(survivor: Survivor) -> tuple[str, str, str]:
    return survivor.file, survivor.line, survivor.becomes


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=0, help="Bugs of each group, chosen at random. 0: all.")
    parser.add_argument("--seed", type=int, default=0, help="Of that choice.")
    parser.add_argument("--group", default="", choices=["", *(group.name for group in GROUPS)], help="Empty: all.")
    parser.add_argument("--only", default="", help="Part of the names of the bugs to plant, such as block_pool.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Tests that run side by side.")
    return parser.parse_args()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
