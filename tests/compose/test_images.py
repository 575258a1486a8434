"""The images: their content, their size, and their user."""

import json
import re
import subprocess

import pytest

from tests.compose.conftest import BASE, ENGINE
from tests.compose.project import ROOT
from tests.documents import Page

SERVICES = ("frontend", "tokenizer", "engine-core", "worker")
MOST_MB = 520


def size_mb(image: str) -> float:
    [found] = json.loads(subprocess.run([ENGINE, "image", "inspect", image], capture_output=True, check=True).stdout)
    return found["Size"] / 1e6


def python(image: str, source: str) -> str:
    command = [ENGINE, "run", "--rm", "--network", "none", "--entrypoint", "python", image, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def documented_mb(image: str) -> int:
    [size] = re.findall(rf"^\| {image} \| (\d+) \|", Page.of("docs/deployment.md").text, re.MULTILINE)
    return int(size)


@pytest.mark.parametrize("target", ["frontend", "tokenizer", "engine-core"])
def test_a_service_without_torch_is_small(images, tell, target):
    own = size_mb(images[target]) - size_mb(BASE)

    tell(f"{images[target]}: {own:.0f} MB over its base")
    assert own < MOST_MB
    assert python(images[target], "from importlib.util import find_spec; print(find_spec('torch'))") == "None\n"


@pytest.mark.parametrize("target", SERVICES)
def test_the_page_tells_the_size(images, target):
    own = size_mb(images[target]) - size_mb(BASE)

    assert own == pytest.approx(documented_mb(images[target]), rel=0.15)


@pytest.mark.parametrize("target", SERVICES)
def test_every_package_is_the_pinned_one(images, target):
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    listed = python(
        images[target],
        "from importlib.metadata import distributions as d\n"
        'print(\'\\n\'.join(f\'{x.name.lower().replace("_", "-")}=={x.version.partition("+")[0]}\' for x in d()))',
    )

    # What a virtual environment brings by itself; nothing of Tetrad's needs it.
    installed = dict(re.findall(r"^(\S+)==(\S+)$", listed, re.MULTILINE))
    others = {name: version for name, version in installed.items() if name not in ("tetrad", "pip", "setuptools")}

    assert len(others) > 10
    assert {name: version for name, version in others.items() if pinned.get(name) != version} == {}


@pytest.mark.parametrize("target", SERVICES)
def test_it_runs_as_nobody_in_particular(images, target):
    assert python(images[target], "import os; print(os.getuid(), os.getgid())") == "10001 10001\n"


def test_the_worker_has_kernels_for_every_processor_and_no_compiler(images):
    found = python(
        images["worker"],
        "import shutil; from tetrad.worker_svc.native.library import prebuilt_dir\n"
        "print(sorted(path.name.split('-')[1] for path in prebuilt_dir().iterdir()), shutil.which('g++'))",
    )

    assert found == "['avx2', 'avx512', 'x86'] None\n"


def test_the_balancer_understands_its_configuration(images):
    done = subprocess.run([ENGINE, "run", "--rm", images["balancer"], "-c"], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
