"""Devices of the worker: cpu, cuda and sim. Only `open_device` chooses between them."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.device import Device

if TYPE_CHECKING:
    # Settings need pydantic; a program that runs a model without the service (benchmarks/gpu.py) needs no settings.
    from tetrad.worker_svc.config import WorkerSettings


def open_device(settings: "WorkerSettings") -> Device:
    """Return the device that the settings name. Raises ModelError if it cannot do what they need."""
    device = _open(settings)
    if len(settings.expert_targets) > 1 and device.name != "cpu":
        raise ModelError(
            f"enable_expert_parallel with data_parallel_size {len(settings.expert_targets)}: the {device.name} device has all "
            "experts on each worker; use the cpu device, or start without enable_expert_parallel."
        )
    if settings.logits_processors and device.name == "sim":
        raise ModelError("logits_processors need a device with logits, cpu or cuda; the sim device makes tokens up.")
    return device


def import_processors(names: Sequence[str]) -> tuple[tuple[str, type], ...]:
    """Return names and classes of custom logits processors; raise FailedPrecondition for the first that is none."""
    if not names:
        return ()  # the simulated device starts without torch
    from tetrad.worker_svc.sampler.custom_classes import import_classes

    return import_classes(names)


def _open(settings: "WorkerSettings") -> Device:
    # The simulated device starts fast because it never imports torch.
    if settings.device == "sim":
        from tetrad.worker_svc.devices.sim import SimDevice

        return SimDevice(settings)
    # By default, OpenMP's threads spin at the end of every parallel region. If another process uses a core, a spinning thread
    # occupies the core that the awaited thread needs: measured, steps take 20 times as long. The library reads this variable
    # when torch is first imported, which is the next line.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # torch.distributed prints 40 lines if a rank does not connect; our error contains its text.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    import torch

    if settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available()):
        from tetrad.worker_svc.devices.cuda import CudaDevice

        return CudaDevice(settings)
    from tetrad.worker_svc.devices.cpu import CpuDevice

    return CpuDevice(settings)
