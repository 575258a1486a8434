"""A sleeping model of the CUDA device: its weights leave the device and return to the same layers."""

from pathlib import Path

import pytest
import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import layout_of
from tests.worker_svc.families.tiny_models import save_family
from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.device.offload import tensors_in
from tetrad.worker_svc.cuda.linears import DeviceLinears
from tetrad.worker_svc.devices.cuda import CudaDevice, CudaModel


@pytest.fixture
def model(tiny_path):
    return load(tiny_path)


def load(path: Path) -> CudaModel:
    """Return a model of one's own, in half precision: its weights are no file's memory."""
    device = CudaDevice(WorkerSettings(device="cuda", enforce_eager=True), HostAccelerator)
    device.set_up()
    return device.load_model(LoadRequest("tiny", path, dtype="float16"), lambda *_: None)


def first_token(model) -> list[int]:
    layout = layout_of(model)
    driver = Driver(model.make_runner(layout), layout)
    driver.add(1, [5, 6, 7])
    return driver.generate(1)[1]


def test_every_weight_leaves_the_device_and_the_model_answers_as_before(model):
    before = first_token(model)
    weights = [tensor for tensor in tensors_in(model) if tensor.untyped_storage().resizable()]

    model.sleep()
    left_bytes = sum(tensor.untyped_storage().nbytes() for tensor in weights)
    model.wake_up()

    assert len(weights) >= 2 * 4 + 2, "the products of both layers, the embedding and the head"
    assert left_bytes == 0
    assert first_token(model) == before


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "mamba2"])
def test_the_embedding_leaves_the_device_if_the_output_layer_has_its_own_matrix(family, tmp_path, monkeypatch):
    """With the kernels' program and the torch decoder, which needs the table only for its lookup."""
    tables: list[torch.Tensor] = []

    def noted(self, *arguments: object) -> torch.Tensor:
        tables.append(embedding(self, *arguments))
        return tables[-1]

    embedding = DeviceLinears.embedding
    monkeypatch.setattr(DeviceLinears, "embedding", noted)
    save_family(tmp_path, family)
    model = load(tmp_path)

    model.sleep()

    assert [table.untyped_storage().nbytes() for table in tables] == [0]


@pytest.mark.parametrize("family", ["llama", "llama4", "gemma3", "falcon_h1", "mamba"])
def test_a_model_holds_only_its_weights_after_a_step(family, tmp_path):
    """What else it held would stay on the device when it sleeps."""
    save_family(tmp_path, family)
    model = load(tmp_path)
    before = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(model)}

    first_token(model)

    assert {tensor.untyped_storage().data_ptr() for tensor in tensors_in(model)} <= before


def test_a_device_without_room_is_told_with_the_numbers(model, monkeypatch):
    model.sleep()

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(model._weights, "wake_up", full)
    with pytest.raises(FailedPrecondition, match=r"The weights need \d+ bytes to wake up; \d+ of the device's \d+ are free"):
        model.wake_up()
