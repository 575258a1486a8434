"""Private directories: nobody else's to enter, short, and never left behind for long."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tetrad.private_directory import PrivateDirectory, private_directories

MAKE = "from tetrad.private_directory import PrivateDirectory; d = PrivateDirectory(); print(d.path, flush=True); input()"


@pytest.fixture
def directory():
    directory = PrivateDirectory()
    yield directory
    directory.remove()


def test_only_its_user_can_enter(directory):
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700


def test_its_path_leaves_room_for_a_socket(directory):
    assert len(str(directory.path / "engine-core.sock")) < 100


def test_it_is_listed_until_it_is_removed(directory):
    assert directory.path in private_directories()

    directory.remove()

    assert directory.path not in private_directories()
    assert not directory.path.exists()


def test_what_a_killed_process_left_goes_with_the_next_one():
    process = subprocess.Popen([sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    left = Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()
    assert left.exists()

    PrivateDirectory().remove()

    assert not left.exists()


def test_that_of_a_living_process_stays(directory):
    PrivateDirectory().remove()

    assert directory.path.exists()
