"""Private directories: closed to other users, short, and removed soon after their process."""

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tetrad.stack.private_directory import PrivateDirectory, private_directories

MAKE = "from tetrad.stack.private_directory import PrivateDirectory; d = PrivateDirectory(); print(d.path, flush=True); input()"


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


def test_one_that_somebody_removed_can_be_restored(directory):
    shutil.rmtree(directory.path)

    directory.restore()

    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert directory.path in private_directories()


FULL = """
import sys, tetrad.stack.private_directory
from pathlib import Path
from tetrad.cli import main

tetrad.stack.private_directory._PARENT = Path(sys.argv[1])
sys.exit(main(["serve", "--device", "sim", "--port", "0"]))
"""


@pytest.mark.parametrize("num_inodes", [1, 2])
def test_a_file_system_without_inodes_ends_the_start_with_one_line(tmp_path, num_inodes):
    """The root of the file system takes one: no room for the directory, or none for its lock."""
    if subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("this user may not mount anything, not even in a namespace of its own")
    script = f'mount -t tmpfs -o nr_inodes={num_inodes} none {tmp_path} && exec "$@"'
    command = ["unshare", "-Urm", "sh", "-c", script, "sh", sys.executable, "-c", FULL, str(tmp_path)]

    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    last = f"tetrad: Cannot make a directory for the services' sockets in {tmp_path}: No space left on device.\n"
    assert (result.returncode, result.stderr) == (1, last)
