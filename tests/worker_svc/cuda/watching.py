"""A watch for calls that would wait for the device, for tests on host memory."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

from tests.worker_svc.conftest import Driver

OPERATIONS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique2", "bincount"}
METHODS = ("numpy", "tolist", "cpu", "__array__")


class Watch(TorchDispatchMode):
    """Notes what would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.is_on = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put_", "index_put") else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        by_number = name == "index_put_" and args[2].dim() == 0  # it is copied to the device first
        if name in OPERATIONS or by_mask or by_number:
            self.note(name)
        return func(*args, **(kwargs or {}))

    def note(self, name: str) -> None:
        if self.is_on:
            self.found.append(name)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        before, self.is_on = self.is_on, False
        try:
            yield
        finally:
            self.is_on = before


def watch_calls(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Return a watch, to enter while a step is launched."""
    watch = Watch()
    watched, call = torch.Tensor, interpreter.GridExecutor.__call__
    for name in METHODS:
        method = getattr(watched, name)

        def noted(self, *args, _name=name, _method=method, **kwargs):
            watch.note(_name)
            return _method(self, *args, **kwargs)

        monkeypatch.setattr(watched, name, noted)

    def interpreted(self, *args, **kwargs):
        with watch.off():
            return call(self, *args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", interpreted)
    return watch


def execute(driver: Driver, watch: Watch, scheduled: dict[int, int], **extra: object) -> list[str]:
    """Run a step and return the calls that would have waited while it was launched."""
    watch.found.clear()
    plan = driver.plan(scheduled, **extra)
    with watch:
        step = driver.runner.execute(plan)
    found = list(watch.found)
    driver.take(step.wait())
    return found
