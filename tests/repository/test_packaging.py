"""An installation: one name in site-packages, all folders in it, and a lock file for any index."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))
VERSION = (ROOT / "VERSION").read_text().strip()
ROOMS = ("services", "frontend", "tokenizer_svc", "engine_core_svc", "worker_svc")


def requirements_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


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


@pytest.mark.parametrize(("page", "start"), [("console", "index.html"), ("docs_page", "docs.html")])
def test_the_wheel_holds_the_files_of_pages(wheel_files, page, start):
    folder = f"frontend/api/http/{page}/static"
    tracked = subprocess.run(["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True)

    names = {f"tetrad/{name}" for name in tracked.stdout.split()}
    assert f"tetrad/{folder}/{start}" in names
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
    extras = PROJECT["optional-dependencies"].values()
    lines = [line for lines in (*extras, *map(requirements_of, REQUIREMENTS)) for line in lines]
    wanted = {re.split(r"[\[<>=;! ]", line)[0].lower().replace("_", "-") for line in lines}
    locked = {line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}

    assert wanted <= locked


def test_the_package_requires_what_each_of_its_services_requires():
    files = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["dynamic"]["dependencies"]["file"]

    assert sorted(files) == sorted(str(path.relative_to(ROOT)) for path in REQUIREMENTS)


def test_the_package_requires_no_tools_of_developers():
    developers = {re.split(r"[\[<>=;! ]", line)[0] for line in PROJECT["optional-dependencies"]["dev"]}
    required = {re.split(r"[\[<>=;! ]", line)[0] for path in REQUIREMENTS for line in requirements_of(path)}

    assert {"mypy", "kubernetes-validate", "triton", "pytest"} <= developers
    assert not developers & required


def test_every_version_is_the_one_of_the_file():
    package = json.loads((ROOT / "clients/typescript/package.json").read_text())
    images = yaml.safe_load((ROOT / "deploy/kubernetes/base/kustomization.yaml").read_text())["images"]

    assert package["version"] == VERSION
    assert {image["newTag"] for image in images} == {VERSION}
    assert (ROOT / "clients/python/VERSION").read_text() == f"{VERSION}\n"
    assert "version" not in PROJECT
    assert re.search(rf"^## {re.escape(VERSION)} ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_versions_of_python_are_the_same_everywhere():
    first, last = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    minors = range(int(first), int(last))
    makefile = (ROOT / "Makefile").read_text()

    classified = [each.rpartition(" 3.")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert classified == [str(minor) for minor in minors]
    assert re.search(r"for p in ((?:python3\.\d+ )+)python3;", makefile)[1].split() == [f"python3.{minor}" for minor in minors]
    assert f"(3, {minors[0]}) <= sys.version_info[:2] <= (3, {minors[-1]})" in makefile
    for page in ("README.md", "docs/quickstart.md"):
        assert f"Python 3.{minors[0]} to 3.{minors[-1]}" in (ROOT / page).read_text()
