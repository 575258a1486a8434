"""What a user installs: one name in site-packages, all rooms in it, and a lock file that any index can serve."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("services", "frontend", "tokenizer_svc", "engine_core_svc", "worker_svc")


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory) -> set[str]:
    target = tmp_path_factory.mktemp("wheel")
    # From a clean export: neither build folders nor what is not committed may get in. build/ would appear in the source tree.
    source = tmp_path_factory.mktemp("source")
    archive = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    for name in filter(None, (entry.decode() for entry in archive)):
        original, copy = ROOT / name, source / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if original.is_symlink():
            copy.symlink_to(original.readlink())
        elif original.is_file():
            copy.write_bytes(original.read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    [wheel] = target.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_adds_one_name_to_site_packages(wheel_files):
    assert {name.split("/")[0] for name in wheel_files if ".dist-info/" not in name} == {"tetrad"}


@pytest.mark.parametrize("room", ROOMS)
def test_the_wheel_holds_every_file_of_a_room(wheel_files, room):
    tracked = subprocess.run(["git", "ls-files", f"{room}/*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert {f"tetrad/{name}" for name in tracked.split()} <= wheel_files


def test_the_wheel_holds_the_console_s_page(wheel_files):
    tracked = subprocess.run(
        ["git", "ls-files", "frontend/api/http/console/static"], cwd=ROOT, check=True, capture_output=True, text=True
    )

    names = {f"tetrad/{name}" for name in tracked.stdout.split()}
    assert "tetrad/frontend/api/http/console/static/index.html" in names
    assert names <= wheel_files


def test_the_wheel_holds_stubs_types_and_the_command(wheel_files):
    assert {"tetrad/py.typed", "tetrad/v1/types_pb2.py", "tetrad/v1/types_pb2.pyi", "tetrad/cli/__init__.py"} <= wheel_files
    assert any(name.endswith("entry_points.txt") for name in wheel_files)


def test_the_wheel_holds_no_tests(wheel_files):
    assert not [name for name in wheel_files if "test" in Path(name).name]


def test_the_lock_pins_every_line_to_a_release():
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]

    assert lines
    assert not [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.]+", line)]


def test_the_lock_has_what_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    wanted = {re.split(r"[\[<>=;! ]", line)[0].lower().replace("_", "-") for line in [*project["dependencies"], *extras]}
    locked = {line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}

    assert wanted - {"tetrad"} <= locked
