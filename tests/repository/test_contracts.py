"""The contracts: lint, and stubs equal to the generator's output."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("root", "package"),
    [("protos", "tetrad/v1"), ("protos/third_party", "tetrad/vllm_api"), ("protos/third_party", "tetrad/openengine_api")],
)
def test_the_committed_stubs_are_what_the_generator_writes(tmp_path, root, package):
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / root / package).glob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]

    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", *outputs, *sources], cwd=ROOT, check=True)

    written = {path.name: path.read_text() for path in (tmp_path / package).iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / package).glob("*_pb2*")}
    assert written == committed


def test_the_contracts_pass_the_linter():
    buf = Path(sys.executable).parent / "buf"

    result = subprocess.run([buf, "lint"], cwd=ROOT, capture_output=True, text=True)

    assert result.returncode == 0, result.stdout


def test_the_reference_is_what_the_comments_say():
    written = subprocess.run([sys.executable, "tools/api_reference.py"], cwd=ROOT, capture_output=True, text=True, check=True)

    assert written.stdout == (ROOT / "docs/api-reference.md").read_text()


def test_every_method_is_documented():
    page = (ROOT / "docs/api-reference.md").read_text()

    assert not re.findall(r"^\| `(\w+)` \| .* \|  \|$", page, re.MULTILINE)
