"""Images on the simulated device: encoded in a modelled time, and checked like those of a real device."""

import asyncio
import time

import numpy as np
import pytest

from tests.vision_files import save_vision_model
from tests.worker_svc.conftest import Driver
from tests.worker_svc.media.image_streams import encoder_inputs, feature
from tests.worker_svc.service_client import connect, new, read_tokens, step
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.v1 import worker_pb2
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import EncoderItem, MediaSpan
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.devices.sim import SimDevice
from tetrad.worker_svc.families.towers import READS_IMAGES, READS_VIDEOS
from tetrad.worker_svc.media.tower_kinds import TOWER_KINDS
from tetrad.worker_svc.media.video_kinds import VIDEO_KINDS

LAYOUT = KvLayout(50, 16, max_model_len=256, max_num_seqs=8, max_num_batched_tokens=256, encoder_cache_size=256)
SPAN = MediaSpan("a", "image", 3, 6, None, 6, (1, 2, 3))
ITEM = EncoderItem("a", "image", {"pixel_values": np.zeros((6, 4), np.uint8)}, 6)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen")
    save_vision_model(path, "qwen2_5_vl")
    return path


def load(directory, **options):
    return SimDevice(WorkerSettings(device="sim")).load_model(LoadRequest("m", directory, **options), lambda *_: None)


def test_modalities_are_those_of_the_models_files(directory):
    info, text = load(directory).info, load(directory, takes_media=False).info

    assert [(each.modality, each.max_embeds_per_item) for each in info.modalities] == [
        ("image", 2048),
        ("video", 2048),
    ]
    assert (info.uses_mrope, text.modalities, text.uses_mrope) == (True, (), False)


def test_architectures_with_towers_are_those_of_the_other_devices():
    assert set(TOWER_KINDS) == READS_IMAGES
    assert set(VIDEO_KINDS) == READS_VIDEOS


def test_a_step_with_an_image_that_is_not_encoded_is_an_impossible_plan(directory):
    model = load(directory)
    driver = Driver(model.make_runner(LAYOUT), LAYOUT)
    driver.add(0, range(20, 40), media=(SPAN,))
    driver.step({0: 3})

    with pytest.raises(InvalidRequest, match="media item a, which is not in the encoder cache"):
        driver.step({0: 5})


def test_spans_change_no_tokens(directory):
    model = load(directory)
    model.media.cache.put(0, "a", model.media.tower.encode(ITEM), 0)
    text, image = (Driver(model.make_runner(LAYOUT), LAYOUT) for _ in range(2))
    text.add(0, range(20, 40))
    image.add(0, range(20, 40), media=(SPAN,))

    assert text.generate(5) == image.generate(5)


def test_a_text_model_refuses_images(directory):
    driver = Driver(load(directory, takes_media=False).make_runner(LAYOUT), LAYOUT)
    driver.add(0, range(20, 40), media=(SPAN,))

    [(_, error)] = finished(driver.runner.execute(driver.plan({0: 20}))).failures

    assert isinstance(error, Unsupported)


async def test_an_image_is_ready_after_its_time_while_steps_go_on(directory, tmp_path):
    async with connect(tmp_path, device="sim", sim_seconds_per_embedding=0.05) as client:
        await client.load(directory)
        await client.initialize(encoder_cache_size=256)
        _ = [message async for message in client.life.WarmUp(worker_pb2.WarmUpRequest())]
        stream, started = await client.open_stream(), time.monotonic()
        await stream.write(encoder_inputs([ITEM]))
        await stream.write(step(1, new_requests=[new(0, [5, 6, 7], 1)]))
        first = await read_tokens(stream)
        ready = await asyncio.wait_for(stream.read(), 10)
        seconds = time.monotonic() - started
        await stream.write(step(2, new_requests=[new(1, [9] * 14, 2, mm_features=[feature(SPAN)])]))

        assert first[0] == 1
        assert list(ready.encoder_events.encoded) == ["a"]
        assert seconds >= 0.3
        assert (await read_tokens(stream))[0] == 2
