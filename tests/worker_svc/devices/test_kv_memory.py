"""kv_cache_memory_gib: a set value is used or refused with both figures, on every device; unset, memory is measured."""

from types import SimpleNamespace

import pytest

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.devices import cpu
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.devices.sim import SimDevice

GIB = 1 << 30
MODEL = SimpleNamespace(info=SimpleNamespace(hidden_size=1024, vocab_size=1024))
STEP_GIB = 1024 * 16 * 1024 * 4 / GIB + 4 * 256 * 1024 * 4 / GIB
"""Activations and logits of a step of 1024 tokens of that model."""


@pytest.fixture
def available_on_cpu(monkeypatch):
    """Return what the CPU device has for keys and values on a machine with so much free memory."""

    def available(free_gib, **settings):
        monkeypatch.setattr(cpu, "available_memory_bytes", lambda: int(free_gib * GIB))
        device = CpuDevice(WorkerSettings(threads=1, cpu_kernels="torch", **settings))
        return device.available_memory(MODEL, utilization=0.5, max_num_batched_tokens=1024) / GIB

    return available


@pytest.mark.parametrize(("free_gib", "found"), [(40, 4), (4, 2 - STEP_GIB), (0.1, 0)])
def test_unset_it_is_4_gib_or_what_is_free(available_on_cpu, free_gib, found):
    assert available_on_cpu(free_gib) == pytest.approx(found)


def test_what_is_set_and_fits_is_had(available_on_cpu):
    assert available_on_cpu(40, kv_cache_memory_gib=6.5) == 6.5


def test_what_does_not_fit_is_refused_with_both_figures(available_on_cpu):
    text = (
        r"kv_cache_memory_gib 500 does not fit: 19\.9 GiB can be had \(gpu_memory_utilization 0\.5 of 40\.0 GiB of free "
        r"memory, less what a step takes\)\."
    )
    with pytest.raises(FailedPrecondition, match=text):
        available_on_cpu(40, kv_cache_memory_gib=500)


def test_the_simulated_device_has_what_it_pretends_to_have():
    ask = {"utilization": 1.0, "max_num_batched_tokens": 1}

    assert SimDevice(WorkerSettings(kv_cache_memory_gib=1)).available_memory(None, **ask) == GIB
    with pytest.raises(FailedPrecondition, match=r"kv_cache_memory_gib 5 does not fit: 4\.0 GiB can be had"):
        SimDevice(WorkerSettings(kv_cache_memory_gib=5)).available_memory(None, **ask)
