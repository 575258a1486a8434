"""Adapters that are read while the model falls asleep or is replaced: they are not installed, and the caller hears it."""

import asyncio
from types import SimpleNamespace

import pytest

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.api.loras import LoraLoading
from tetrad.worker_svc.worker.compute_thread import ComputeThread


class ModelLoras:
    """The adapters of one model; reading one runs `during`."""

    def __init__(self, during=lambda: None):
        self.installed, self._during = [], during

    def read(self, path):
        self._during()
        return SimpleNamespace(digest=b"digest")

    def install(self, lora_id, packed):
        self.installed.append(lora_id)


class Worker:
    """A worker with a model, unless it sleeps."""

    def __init__(self):
        self.loras, self.sleeps = ModelLoras(), False

    def model_loras(self):
        if self.sleeps:
            raise FailedPrecondition("The worker is asleep.", reason="NOT_READY")
        return self.loras

    def sleep(self):
        self.sleeps = True

    def replace_model(self):
        self.loras = ModelLoras()


@pytest.fixture
def compute():
    thread = ComputeThread()
    yield thread
    thread.close()


async def test_an_adapter_is_installed_in_the_model_that_it_was_read_for(compute):
    worker = Worker()

    assert await LoraLoading(worker, compute).install(1, "/a") == b"digest"
    assert worker.loras.installed == [1]


@pytest.mark.parametrize("change", ["sleep", "replace_model"])
async def test_a_model_that_goes_while_an_adapter_is_read_gets_none(compute, change):
    worker = Worker()
    worker.loras = before = ModelLoras(during=lambda: compute.run(getattr(worker, change)))

    with pytest.raises(FailedPrecondition) as refused:
        await asyncio.wait_for(LoraLoading(worker, compute).install(1, "/a"), 5)

    assert refused.value.reason == "NOT_READY"
    assert (before.installed, worker.loras.installed) == ([], [])
