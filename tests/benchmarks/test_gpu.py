"""The script for a GPU: every section runs here with tiny shapes; without a GPU on the host, under Triton's interpreter."""

import contextlib
import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.gpu import LIMITS_S
from benchmarks.gpu_sections import kernel_parity
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.parity_case import Case
from benchmarks.gpu_sections.processes import run_limited, run_section
from benchmarks.gpu_sections.results import Result, Results
from benchmarks.gpu_sections.step_profile import Interval, idle_us

DEVICE = "cuda" if torch.cuda.is_available() else "host"
ROOT = Path(__file__).parents[2]
# What a machine with no more than torch and transformers has not got.
MISSING = ("grpc", "google", "grpc_status", "structlog", "pydantic", "pydantic_settings", "llguidance", "gguf")
SITE = f"""
import sys
class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing)
"""


def run_script(*arguments: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": str(site)} if site else {}
    command = [sys.executable, "benchmarks/gpu.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | path, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", LIMITS_S)
def test_a_section_runs(name, tmp_path):
    findings = run_section(name, 60, Namespace(device=DEVICE, quick=True, out=tmp_path, weights=None))

    assert findings.failures == []
    assert findings.parts or findings.not_run
    assert findings.device


def test_idle_time_is_that_between_kernels_none_of_which_runs():
    names = [Interval("a", 0, 5), Interval("b", 3, 4), Interval("c", 7, 9), Interval("d", 10, 11)]

    assert idle_us(names) == 3


def test_the_command_of_the_page_needs_no_more_than_torch(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    [asked] = re.findall(r"^python benchmarks/gpu.py (.*)$", (ROOT / "docs" / "cuda.md").read_text(), re.MULTILINE)
    arguments = asked.replace("/tmp/gpu-results", str(tmp_path)).split()

    ran = run_script(*arguments, "--only", "kernel_parity", site=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "rms_norm | bfloat16" in ran.stdout
    assert "## Kernels against float64" in (tmp_path / "host-kernel_parity.md").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_the_script_says_so_and_fails(tmp_path):
    ran = run_script("--only", "facts", "--out", str(tmp_path))

    assert ran.returncode == 1
    assert "torch finds no CUDA device" in ran.stdout
    assert "torch finds no CUDA device" in (tmp_path / "unknown-facts.md").read_text()


def test_a_section_whose_time_is_over_ends_with_what_it_started(tmp_path):
    note = tmp_path / "grandchild"

    said = run_limited(["sh", "-c", f"sleep 600 & echo $! > {note}; wait"], 1.0)

    assert said == "stopped after 1 s"
    assert has_ended(int(note.read_text()))


def has_ended(pid: int) -> bool:
    """A process that was killed may wait for a moment, or as a zombie for ever, until somebody asks for its status."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(2)
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def test_the_page_tells_what_failed_and_what_was_measured(tmp_path):
    results = Results(tmp_path, ["a", "b"])

    results.add("b", Result(Findings("B", failures=["it broke"], not_run=["c: no gRPC"]), 4.0))
    results.add("a", Result(Findings("A", ["text of a"], found={"decode_1": 1.2}, device="NVIDIA H200"), 3.0))

    page = (tmp_path / "nvidia_h200.md").read_text()
    assert "| decode step, batch 1, context 1,000: times the floor | at most 1.35 | 1.2 | yes |" in page
    assert "at least 60,000 tokens/s | not measured | - |" in page
    assert "text of a" in page
    assert page.index("| A |") < page.index("| B |")
    assert "Failed:\n\n- it broke" in page
    assert "Not run:\n\n- c: no gRPC" in page
    assert results.status == 1


@pytest.mark.parametrize(("wrong_by", "holds"), [(0.001, True), (0.1, False), (float("nan"), False)])
def test_a_kernel_is_judged_by_what_its_type_can_tell_apart(wrong_by, holds):
    exact = torch.ones(3, dtype=torch.float64)
    case = Case("kernel", "3", lambda: (exact.bfloat16(), exact))

    outcome = kernel_parity.compare(case, (exact + wrong_by).bfloat16(), exact)

    assert outcome.holds is holds
