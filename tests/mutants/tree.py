"""Tree: a copy of the engine core and its tests in which mutmut can plant bugs.

mutmut finds modules by their paths, so the links in tetrad/ become folders.
"""

import shutil
from pathlib import Path

from tests.mutants.groups import PACKAGE, TESTS, Group

ROOT = Path(__file__).parents[2]
_COPIED = ("tetrad", TESTS, "pyproject.toml", *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*.py")))
_JUNK = shutil.ignore_patterns("__pycache__", ".*_cache")
# What is said to people is not what is tested here: logs, texts of errors, help of metrics.
_SETTINGS = """\
[mutmut]
source_paths=tetrad
only_mutate={files}
pytest_add_cli_args_test_selection={tests}
do_not_mutate_patterns=
    ^\\s*log\\.
    ^\\s*raise \\w
    fault\\(
    ^\\s*text \\+?=
process_isolation=forkserver
timeout_multiplier=3
timeout_constant=3
"""


def make_tree(group: Group, directory: Path) -> None:
    """Fill an empty directory with what a group needs, and with mutmut's settings."""
    for name in _COPIED:
        source, target = ROOT / name, directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=_JUNK)
        else:
            shutil.copy(source, target)
    files, tests = (_lines(folder, names) for folder, names in ((PACKAGE, group.files), (TESTS, group.tests)))
    (directory / "setup.cfg").write_text(_SETTINGS.format(files=files, tests=tests))


def _lines(folder: str, names: tuple[str, ...]) -> str:
    return "".join(f"\n    {folder}/{name}" for name in names)
