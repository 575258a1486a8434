"""The copy in which bugs are planted has everything that its tests import."""

import subprocess
import sys

import pytest

from tests.mutants.groups import GROUPS, TESTS
from tests.mutants.tree import make_tree


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_the_tests_of_a_group_can_be_collected_in_its_tree(group, tmp_path):
    make_tree(group, tmp_path)

    tests = [f"{TESTS}/{name}" for name in group.tests]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-3000:]
