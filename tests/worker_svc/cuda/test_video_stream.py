"""Videos on the Execute stream of a worker with a device, interpreted: the first token is that of transformers' model."""

import numpy as np
import pytest

from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.media.image_streams import LAYOUT, encoder_inputs, new_request, read
from tests.worker_svc.media.video_prompts import video_prompt
from tests.worker_svc.service_client import connect, read_tokens, step
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.devices.cuda import CudaDevice


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
async def test_a_prompt_with_a_video(kind, tmp_path, monkeypatch):
    save_vision_model(tmp_path, kind)
    reference, side = VisionReference(tmp_path), 32 if kind == "qwen3_vl" else 28
    frames = np.random.default_rng(0).integers(0, 256, (6, 3, side, 2 * side), np.uint8)
    prompt = video_prompt(reference, kind, frames)
    expected = reference.generate(prompt.prepared, 1).token_ids
    monkeypatch.setattr("tetrad.worker_svc.service.open_device", lambda settings: CudaDevice(settings, HostAccelerator))

    async with connect(tmp_path, device="cuda", enforce_eager=True) as client:
        await client.load(tmp_path, dtype="float32")
        await client.initialize(**LAYOUT)
        stream = await client.open_stream()
        await stream.write(encoder_inputs(prompt.items))
        ready = (await read(stream)).encoder_events
        await stream.write(step(1, new_requests=[new_request(0, prompt)]))
        tokens = await read_tokens(stream)

    assert list(ready.encoded) == [prompt.items[0].identifier]
    assert tokens == (1, {0: expected[0]})
