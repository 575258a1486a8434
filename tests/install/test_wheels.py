"""The wheels, installed: into an environment that has the packages they need, and into an empty one from pip's index."""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.install.conftest import ROOT, Environment, post

VERSION = (ROOT / "VERSION").read_text().strip()
MAX_SIZE_BYTES = 1.4e9
CLIENT = """
import sys
from tetrad_client import Client
with Client(sys.argv[1]) as client:
    print(client.complete("The capital of France is", max_tokens=3, temperature=0))
"""


def test_the_wheels_serve_where_their_packages_are(tmp_path, build_wheels, this_environment):
    wheels = build_wheels(["--no-kernels"])
    environment = Environment(tmp_path, borrowed=this_environment)
    install = [sys.executable, "-m", "pip", "--python", str(environment.bin / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--ignore-installed", *map(str, wheels)], check=True)

    where = environment.run("python", "-c", "import tetrad, tetrad_client; print(tetrad.__file__, tetrad_client.__file__)")
    with environment.serving("--device", "sim") as (url, grpc_target, _):
        answer = post(f"{url}/v1/completions", {"prompt": "Hello", "max_tokens": 3})
        text = environment.run("python", "-c", CLIENT, grpc_target)

    assert [wheel.name for wheel in wheels] == [
        f"tetrad-{VERSION}-py3-none-any.whl",
        f"tetrad_client-{VERSION}-py3-none-any.whl",
    ]
    assert all(path.startswith(str(tmp_path)) for path in where.split())
    assert environment.run("tetrad", "--version") == f"tetrad {VERSION}\n"
    assert answer["usage"]["completion_tokens"] == 3
    assert text.strip()


@pytest.mark.skipif("TEST_INSTALL" not in os.environ, reason="make install-test: fetches 340 MB, installs 1.4 GB")
def test_the_wheels_serve_from_an_empty_environment_without_a_compiler(tmp_path, build_wheels, smollm2, has_compiler):
    wheels = build_wheels([])
    environment = Environment(tmp_path)
    pins = ROOT / "requirements.lock"

    environment.run("python", "-m", "pip", "install", "--quiet", "-c", str(pins), *map(str, wheels))
    size_bytes = _size_bytes(tmp_path / "venv")
    with environment.serving(str(smollm2), "--log-level", "info") as (url, grpc_target, log):
        question = [{"role": "user", "content": "Name the capital of France."}]
        answer = post(f"{url}/v1/chat/completions", {"messages": question, "temperature": 0})
        text = environment.run("python", "-c", CLIENT, grpc_target)
        lines = log.read_text()

    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert "Paris" in text
    assert size_bytes < MAX_SIZE_BYTES
    names = environment.run("python", "-m", "pip", "list", "--format", "freeze")
    assert not re.findall(r"^(?:mypy|pytest|ruff|triton|kubernetes.*)==", names, re.MULTILINE)
    if has_compiler and platform.machine() in ("x86_64", "aarch64"):
        assert re.search(rf"-manylinux_2_\d+_{platform.machine()}\.whl$", wheels[0].name)
        assert "native.loaded" in lines
        assert "Compiling" not in lines
    else:
        assert "no C++ compiler" in lines


@pytest.mark.skipif("TEST_INSTALL" not in os.environ, reason="make install-test: compiles for half a minute")
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="Debian's package g++-aarch64-linux-gnu is missing")
def test_a_wheel_for_arm_is_built_on_another_machine(build_wheels):
    wheel, _ = build_wheels(["--machine", "aarch64"])

    kernels = [Path(name).name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert re.search(r"-manylinux_2_\d+_aarch64\.whl$", wheel.name)
    assert sorted(name.rpartition("-")[0] for name in kernels) == ["kernels-armv8", "kernels-armv8.2"]


def _size_bytes(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if not path.is_symlink())
