"""A worker with an asynchronous device: results come in order, and a failing device ends the stream."""

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.worker_svc.pooling.checkpoints import ENCODERS, save_encoder
from tests.worker_svc.service_client import connect, error_of, new, read_tokens, step
from tetrad.services.errors import InternalError
from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.cuda.device.accelerator import Download, HostAccelerator
from tetrad.worker_svc.devices.cuda import CudaDevice


class HeldAccelerator(HostAccelerator):
    """Results arrive when they are let go, or never: then the device has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = threading.Semaphore(0)
        self.released = threading.Event()
        self.error: Exception | None = None
        self.lost: Exception | None = None

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        self.launches.release()
        return HeldDownload(self, super().download(tensors))


class HeldDownload:
    def __init__(self, accelerator: HeldAccelerator, arrived: Download) -> None:
        self._accelerator, self._arrived = accelerator, arrived

    def wait(self) -> list[np.ndarray]:
        assert self._accelerator.released.wait(30)
        if self._accelerator.error is not None:
            raise self._accelerator.error
        return self._arrived.wait()


@pytest.fixture
def accelerator() -> HeldAccelerator:
    return HeldAccelerator()


@pytest.fixture
async def held_client(tmp_path, monkeypatch, accelerator, tiny_path):
    monkeypatch.setattr("tetrad.worker_svc.service.open_device", lambda settings: CudaDevice(settings, lambda: accelerator))
    async with connect(tmp_path, device="cuda", enforce_eager=True) as client:
        await client.load(tiny_path, dtype="float32")
        await client.initialize(max_num_seqs=2)
        yield client
        accelerator.released.set()


@pytest.fixture
async def held_encoder(tmp_path, monkeypatch, accelerator):
    save_encoder(tmp_path / "bert", ENCODERS["bert"])
    monkeypatch.setattr("tetrad.worker_svc.service.open_device", lambda settings: CudaDevice(settings, lambda: accelerator))
    async with connect(tmp_path, device="cuda") as client:
        await client.load(tmp_path / "bert", dtype="float32")
        yield client
        accelerator.released.set()


async def launched(accelerator: HeldAccelerator) -> None:
    """Return when one more step is on the device."""
    assert await asyncio.to_thread(accelerator.launches.acquire, timeout=30)


async def test_the_next_step_is_launched_before_the_last_one_has_ended(held_client, accelerator):
    stream = await held_client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    await stream.write(step(2, cached=[(3, 3)]))
    await launched(accelerator)
    await launched(accelerator)

    accelerator.released.set()
    results = [await read_tokens(stream) for _ in range(2)]

    assert [step_id for step_id, _ in results] == [1, 2]
    assert all(list(tokens) == [3] for _, tokens in results)
    assert (await held_client.info()).device == "cuda"


async def test_steps_of_an_encoder_are_queued_and_answered_in_their_order(held_encoder, accelerator):
    question = worker_pb2.DetermineAvailableMemoryRequest(gpu_memory_utilization=0.5, max_num_batched_tokens=64)
    memory = await held_encoder.life.DetermineAvailableMemory(question)
    await held_encoder.initialize(num_blocks=1, max_model_len=64, max_num_batched_tokens=64)
    stream = await held_encoder.open_stream()
    embed = types_pb2.PoolingParams(task="embed")
    for step_id, ids in ((1, [5, 6, 7]), (2, [8])):
        request = new(step_id, ids, 0, sampling_params=None, pooling_params=embed)
        request.ClearField("block_ids")  # nothing is cached
        await stream.write(step(step_id, new_requests=[request]))
    await launched(accelerator)
    await launched(accelerator)

    accelerator.released.set()
    outputs = [(await asyncio.wait_for(stream.read(), 10)).output for _ in range(2)]

    assert memory.available_bytes == 1 << 29
    assert [(output.step_id, [each.handle for each in output.pooling_outputs]) for output in outputs] == [(1, [1]), (2, [2])]
    assert [list(each.output.shape) for output in outputs for each in output.pooling_outputs] == [[32], [32]]


async def test_a_step_that_fails_on_the_device_ends_the_stream_and_no_other(held_client, accelerator):
    stream = await held_client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    await launched(accelerator)

    accelerator.error = RuntimeError("a shape that no kernel takes")
    accelerator.released.set()
    error = await error_of(stream.read())
    accelerator.error = None
    again = await held_client.open_stream(epoch=2)
    await again.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))

    assert isinstance(error, InternalError)
    assert (error.reason, error.message) == (
        "STEP_FAILED",
        "Step 1 failed on the device: a shape that no kernel takes",
    )
    assert 3 in (await read_tokens(again))[1]


async def test_a_device_that_lost_its_context_ends_the_worker_and_fails_nobody_s_step(held_client, accelerator):
    """CUDA answers every call after an illegal access with its error: the next engine core's requests would fail as well."""
    stream = await held_client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    await launched(accelerator)

    accelerator.error = accelerator.lost = RuntimeError("an illegal memory access was encountered")
    accelerator.released.set()
    read = asyncio.ensure_future(stream.read())

    with pytest.raises(InternalError, match="every call with an error: an illegal memory access"):
        await asyncio.wait_for(held_client.served.lost_device.wait(), 30)
    assert not read.done()
    read.cancel()
