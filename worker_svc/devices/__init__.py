"""Devices of the worker. `open_device` is the one place that chooses."""

import os
from typing import TYPE_CHECKING

from tetrad.worker_svc.core.device import Device

if TYPE_CHECKING:
    # Settings need pydantic; what runs a model by itself (benchmarks/gpu.py) needs none of them.
    from tetrad.worker_svc.config import WorkerSettings


def open_device(settings: "WorkerSettings") -> Device:
    """Return the device that the settings ask for."""
    # The simulated device starts in a moment because it never imports torch.
    if settings.device == "sim":
        from tetrad.worker_svc.devices.sim import SimDevice

        return SimDevice(settings)
    # OpenMP's threads spin at the end of every parallel region by default. When another process wants a core, the spinning
    # thread keeps the one that the thread it waits for needs: measured, steps take 20 times as long. The library reads this
    # when torch is first imported, which is the next line.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # torch.distributed prints 40 lines for a rank that does not come; our error has its text.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    import torch

    if settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available()):
        from tetrad.worker_svc.devices.cuda import CudaDevice

        return CudaDevice(settings)
    from tetrad.worker_svc.devices.cpu import CpuDevice

    return CpuDevice(settings)
