"""Memory shortage: one line with the wanted and the available size, the limit, and the option to lower."""

import re
import resource
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core import host
from tetrad.worker_svc.core.host import available_memory_bytes
from tetrad.worker_svc.core.memory_shortage import memory_for
from tetrad.worker_svc.devices.cpu import CpuDevice

MODEL = SimpleNamespace(info=SimpleNamespace(hidden_size=64, vocab_size=272))
FAR_TOO_MUCH = 1 << 60


def available(**settings: float) -> int:
    device = CpuDevice(WorkerSettings(threads=1, **settings))
    return device.available_memory(MODEL, utilization=0.9, max_num_batched_tokens=16)


def chained() -> None:
    try:
        raise OSError(12, "Cannot allocate memory")
    except OSError as error:
        raise ValueError("the file cannot be read") from error


@pytest.mark.parametrize(
    "work",
    [
        lambda: np.zeros(FAR_TOO_MUCH, np.uint8),
        lambda: torch.zeros(FAR_TOO_MUCH, dtype=torch.uint8),
        chained,
    ],
    ids=["numpy", "torch", "a library that wraps the system's error"],
)
def test_a_refused_allocation_names_what_was_wanted_what_there_is_and_the_option(work):
    with pytest.raises(FailedPrecondition) as caught, memory_for("The KV cache", 5 << 30, "Lower --it."):
        work()

    text = r"The KV cache needs 5368709120 bytes; \d+ are available \(5.00 GiB of .*, limited by .*\)\. Lower --it\."
    assert re.fullmatch(text, caught.value.message)
    assert caught.value.reason == "NO_MEMORY"


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="shape"), memory_for("The KV cache", None, ""):
        raise RuntimeError("shape '[2]' is invalid")


def test_a_kv_cache_that_was_asked_for_is_given_whole():
    assert available(kv_cache_memory_gib=0.25) == 1 << 28


def test_a_kv_cache_larger_than_the_memory_is_refused():
    with pytest.raises(FailedPrecondition, match=r"kv_cache_memory_gib 500000 does not fit: \d+\.\d GiB can be had"):
        available(kv_cache_memory_gib=500_000)


def test_a_kv_cache_that_nobody_asked_for_takes_what_is_free_at_most():
    assert 0 < available() <= min(4 << 30, available_memory_bytes())


def test_pages_of_files_do_not_count_against_a_containers_limit(tmp_path, monkeypatch):
    files = {"memory.max": "1000000\n", "memory.current": "900000\n", "memory.stat": "anon 1\ninactive_file 400000\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host, "_CGROUP", tmp_path)

    assert host.available_memory() == host.AvailableMemory(500_000, "the container's memory limit")


def test_a_limit_on_address_space_is_a_limit_on_memory():
    script = (
        "from tetrad.worker_svc.core.host import available_memory\n"
        "found = available_memory()\n"
        "assert found.size_bytes < 1 << 30, found\n"
        "print(found.limited_by)"
    )
    limit = (1 << 30, 1 << 30)

    ran = subprocess.run(
        [sys.executable, "-c", script],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stderr
    assert "ulimit -v" in ran.stdout
