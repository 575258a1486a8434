"""Devices: what a worker runs on. `open_device` is the one place that chooses."""

from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.devices.interface import Device


def open_device(settings: WorkerSettings) -> Device:
    """Return the device that the settings ask for."""
    # The simulated device starts in a moment because it never imports torch.
    if settings.device == "sim":
        from tetrad.worker_svc.devices.sim import SimDevice

        return SimDevice(settings)
    from tetrad.worker_svc.devices.cpu import CpuDevice

    return CpuDevice(settings)
