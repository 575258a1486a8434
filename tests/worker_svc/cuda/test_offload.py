"""Offloaded tensors: they leave the device, and return as the same tensors with the same content."""

from dataclasses import dataclass

import pytest
import torch

from tests.worker_svc.cuda.conftest import host_only
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.device.offload import Offload, tensors_in
from tetrad.worker_svc.layers.linear import PlainLinear


@dataclass(slots=True)
class _Layer:
    norm: torch.Tensor
    products: list[PlainLinear]
    rest: dict[str, object]


_Layer.__module__ = "tetrad.of_a_test"


@host_only
def test_tensors_give_their_memory_up_and_are_as_they_were():
    tensors = [torch.randn(3, 5), torch.arange(7, dtype=torch.int32), torch.randn(2, 8).to(torch.bfloat16)]
    before = [tensor.clone() for tensor in tensors]
    offload = Offload(HostAccelerator(), tensors)

    offload.sleep()
    assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [0, 0, 0]
    offload.wake_up()

    assert all(torch.equal(tensor, old) for tensor, old in zip(tensors, before, strict=True))


@host_only
def test_views_of_one_storage_are_moved_once_and_stay_views():
    fused = torch.randn(6, 4)
    query, embedding = fused[2:4], fused.t()
    offload = Offload(HostAccelerator(), [query, fused, embedding])
    size_bytes = offload.size_bytes

    offload.sleep()
    asleep_bytes = offload.size_bytes
    offload.wake_up()
    fused[2, 1] = 42.0

    assert size_bytes == asleep_bytes == fused.nbytes
    assert query[0, 1] == embedding[1, 2] == 42.0


def test_a_second_sleep_and_a_second_wake_up_change_nothing():
    weight = torch.randn(4)
    before = weight.clone()
    offload = Offload(HostAccelerator(), [weight, torch.empty(0)])

    offload.wake_up()
    offload.sleep()
    offload.sleep()
    offload.wake_up()
    offload.wake_up()

    assert torch.equal(weight, before)


@host_only
def test_a_device_without_room_leaves_everything_asleep(monkeypatch):
    weights = [torch.randn(4), torch.randn(100)]
    before = [weight.clone() for weight in weights]
    offload = Offload(HostAccelerator(), weights)
    offload.sleep()
    resize = torch.UntypedStorage.resize_

    def refuse_large(storage, size):
        if size > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return resize(storage, size)

    monkeypatch.setattr(torch.UntypedStorage, "resize_", refuse_large)
    with pytest.raises(torch.OutOfMemoryError):
        offload.wake_up()
    assert [weight.untyped_storage().nbytes() for weight in weights] == [0, 0]
    monkeypatch.undo()
    offload.wake_up()

    assert all(torch.equal(weight, old) for weight, old in zip(weights, before, strict=True))


def test_all_tensors_of_an_object_are_found_wherever_it_keeps_them():
    def layer(number: int) -> _Layer:
        return _Layer(torch.full((2,), number), [PlainLinear(torch.ones(number, 3), None)], {"more": (torch.zeros(number),)})

    layers = [layer(1), layer(2)]
    layers[0].rest["myself"] = layers[0]

    found = list(tensors_in(layers))

    assert sorted(tuple(each.shape) for each in found) == [(1,), (1, 3), (2,), (2,), (2,), (2, 3)]


def test_other_packages_are_not_searched():
    assert list(tensors_in([torch.nn.Linear(2, 2)])) == []
