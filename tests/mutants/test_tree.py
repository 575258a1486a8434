"""The tree of planted bugs contains all imports of its tests."""

import subprocess
import sys

from tests.mutants.groups import GROUPS, TESTS
from tests.mutants.tree import ROOT, Tree


def test_the_tests_of_all_groups_can_be_collected_in_a_tree(tmp_path):
    tree = Tree(GROUPS[0], tmp_path)

    tests = sorted({f"{TESTS}/{name}" for group in GROUPS for name in group.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=tmp_path, env=tree.environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-3000:]


def test_every_group_names_files_that_exist():
    assert all(list((ROOT / "tetrad/engine_core_svc").glob(pattern)) for group in GROUPS for pattern in group.files)
