"""An installation without extras: each command works, or one line names the extra that it needs."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tetrad.services.extras import MODULES

ROOT = Path(__file__).parents[2]
# Python imports this before anything else: the modules are as if they were not installed.
SITE_CUSTOMIZE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
ALL = sorted({name for names in MODULES.values() for name in names} | {"starlette", "transformers", "tqdm"})


def run(directory: Path, missing: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "sitecustomize.py").write_text(SITE_CUSTOMIZE.format(names=missing))
    environment = os.environ | {"PYTHONPATH": f"{directory}:{ROOT}", "TETRAD_CACHE_DIR": str(directory / "cache")}
    command = [sys.executable, "-m", "tetrad.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("status",), "cli"),
        (("chat", "-q", "hi"), "cli"),
        (("bench",), "cli"),
        (("serve", "--port", "0"), "all"),
        (("frontend",), "frontend"),
        (("tokenizer",), "tokenizer"),
        (("engine-core",), "engine-core"),
        (("worker",), "worker"),
    ],
)
def test_without_extras_a_command_names_the_one_it_needs(tmp_path, arguments, extra):
    result = run(tmp_path, ALL, *arguments)

    assert result.stderr.count("\n") == 1, result.stderr
    assert f"pip install 'tetrad[{extra}]'" in result.stderr
    assert result.returncode == 78
    assert not (tmp_path / "cache").exists(), "nothing is fetched for a command that cannot run"


def test_one_extra_that_is_missing_is_named_alone(tmp_path):
    result = run(tmp_path, list(MODULES["frontend"]), "serve", "--port", "0", str(model_file(tmp_path)))

    assert result.stderr.count("\n") == 1, result.stderr
    assert "(fastapi, httptools, uvicorn, msgspec): pip install 'tetrad[frontend]'" in result.stderr


def model_file(directory: Path) -> Path:
    path = directory / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_help_needs_nothing(tmp_path):
    assert "  serve " in run(tmp_path, ALL, "--help").stdout


def test_the_modules_are_of_packages_that_the_extras_bring():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    for extra, modules in MODULES.items():
        brought = " ".join(extras[extra]).replace("-", "_")
        assert all(name in brought for name in modules), extra
