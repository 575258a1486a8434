"""An environment without some packages, such as a service's image: each command works, or names the missing package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tetrad.services.packages import MODULES

ROOT = Path(__file__).parents[3]
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
    ("arguments", "missing"),
    [
        (("status",), "httpx"),
        (("chat", "-q", "hi"), "httpx"),
        (("bench",), "httpx"),
        (("serve", "--port", "0"), "msgspec"),
        (("frontend",), "uvicorn"),
        (("tokenizer",), "tokenizers"),
        (("engine-core",), "llguidance"),
        (("worker",), "numpy"),
    ],
)
def test_a_command_names_a_package_that_it_lacks(tmp_path, arguments, missing):
    result = run(tmp_path, ALL, *arguments)

    assert result.stderr.count("\n") == 1, result.stderr
    assert missing in result.stderr
    assert "pip install tetrad" in result.stderr
    assert result.returncode == 78
    assert not (tmp_path / "cache").exists(), "nothing is fetched for a command that cannot run"


def test_the_packages_of_one_part_are_named_together(tmp_path):
    missing = [name for name in MODULES["frontend"] if name not in MODULES["worker"]]

    result = run(tmp_path, missing, "serve", "--port", "0", str(model_file(tmp_path)))

    assert result.stderr.count("\n") == 1, result.stderr
    assert "(fastapi, httptools, uvicorn): pip install tetrad" in result.stderr


def model_file(directory: Path) -> Path:
    path = directory / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_help_needs_nothing(tmp_path):
    assert "  serve " in run(tmp_path, ALL, "--help").stdout


@pytest.mark.parametrize("part", MODULES)
def test_the_modules_are_of_packages_that_the_part_requires(part):
    brought = (ROOT / "requirements" / f"{part}.txt").read_text().replace("-", "_")

    assert all(name in brought for name in MODULES[part])
