"""Images on the Execute stream of a worker with a device, interpreted: items are encoded beside steps, on their own thread."""

import threading

import pytest

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.media.image_prompts import image_prompt
from tests.worker_svc.media.image_streams import LAYOUT, encoder_inputs, new_request, read
from tests.worker_svc.service_client import connect, new, read_tokens, step
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.media.tower import DeviceTower
from tetrad.worker_svc.devices.cuda import CudaDevice


@pytest.fixture
async def client(tmp_path, monkeypatch):
    save_vision_model(tmp_path, "smolvlm")
    monkeypatch.setattr("tetrad.worker_svc.service.open_device", lambda settings: CudaDevice(settings, HostAccelerator))
    async with connect(tmp_path, device="cuda", enforce_eager=True) as client:
        await client.load(tmp_path, dtype="float32")
        await client.initialize(**LAYOUT)
        yield client


async def test_a_step_runs_while_an_image_is_encoded_and_then_one_with_the_image(client, tmp_path, monkeypatch):
    reference, may_end = VisionReference(tmp_path), threading.Event()
    prompt = image_prompt(reference, [picture(60, 40)])
    [expected] = reference.generate(prompt.prepared, 1).token_ids
    encode = DeviceTower._encode

    def held(tower, item):
        assert may_end.wait(30)
        return encode(tower, item)

    monkeypatch.setattr(DeviceTower, "_encode", held)
    stream = await client.open_stream()
    await stream.write(encoder_inputs(prompt.items))
    await stream.write(step(1, new_requests=[new(0, [5, 6, 7], 40)]))

    first = await read_tokens(stream)
    may_end.set()
    ready = (await read(stream)).encoder_events
    await stream.write(step(2, new_requests=[new_request(1, prompt)]))

    assert first[0] == 1
    assert list(ready.encoded) == [prompt.items[0].identifier]
    assert await read_tokens(stream) == (2, {1: expected})
