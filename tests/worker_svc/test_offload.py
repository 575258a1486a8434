"""Tensors that sleep in host memory: gone from the device meanwhile, and afterwards the same tensors with the same content."""

import pytest
import torch

from tetrad.worker_svc.cuda.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.offload import Offload


def test_tensors_give_their_memory_up_and_are_as_they_were():
    tensors = [torch.randn(3, 5), torch.arange(7, dtype=torch.int32), torch.randn(2, 8).to(torch.bfloat16)]
    before = [tensor.clone() for tensor in tensors]
    offload = Offload(HostAccelerator(), tensors)

    offload.sleep()
    assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [0, 0, 0]
    offload.wake_up()

    assert all(torch.equal(tensor, old) for tensor, old in zip(tensors, before, strict=True))


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
