"""Facts: the device, its driver and libraries, and its floors (see floors.py)."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.floors import measure_floors
from benchmarks.machine import commit


def run(bench: Bench) -> Findings:
    """Report the device and measure its floors."""
    findings = Findings("The device")
    floors = measure_floors(bench)
    rows = [*_device(bench), *_software()]
    rows += [
        ["copy within its memory, read and written", f"{floors.bandwidth / 1e12:.3g} TB/s"],
        ["bf16 product of square matrices, random values", f"{floors.gemm / 1e12:.3g} TFLOP/s"],
    ]
    findings.rows(["what", ""], rows)
    return findings


def _device(bench: Bench) -> list[list[str]]:
    rows = [["device", bench.name], ["its processors", str(bench.accelerator.num_processors)]]
    rows.append(["its memory", f"{bench.accelerator.memory()[1] / (1 << 30):.1f} GiB"])
    if bench.is_gpu:
        major, minor = torch.cuda.get_device_capability(bench.device)
        rows.append(["compute capability", f"{major}.{minor}"])
        rows.append(["driver; torch's CUDA", f"{_driver()}; {torch.version.cuda}"])
    return rows


def _driver() -> str:
    """Return the driver's version as nvidia-smi prints it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def _software() -> list[list[str]]:
    rows = [[name, _version(name)] for name in ("torch", "triton", "transformers", "numpy")]
    return [*rows, ["Python", platform.python_version()], ["commit", commit()]]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
