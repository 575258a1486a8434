"""Images from pixels to tokens on the device, interpreted: tower, encoder cache and decoder give transformers' tokens."""

import numpy as np
import pytest
import torch

from tests.audio_files import save_audio_model
from tests.audio_reference import AudioReference
from tests.pictures import picture
from tests.sounds import samples
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import layout_of
from tests.worker_svc.media.audio_prompts import audio_prompt
from tests.worker_svc.media.image_prompts import image_prompt
from tetrad.services.errors import FailedPrecondition, InvalidRequest
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import EncoderItem, SamplingSpec
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.device.offload import tensors_in
from tetrad.worker_svc.devices.cuda import CudaDevice

LAYOUT = KvLayout(num_blocks=80, block_size=16, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=256)
KINDS = ("smolvlm", "qwen2_5_vl", "qwen3_vl")
IMAGES = [picture(60, 40), picture(30, 90, 1)]
ALL = SamplingSpec(temperature=0.0, num_logprobs=-1)
NUM_TOKENS = 3


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_those_of_the_whole_model(kind, tmp_path, load_cuda):
    save_vision_model(tmp_path, kind)
    reference = VisionReference(tmp_path)
    prompt = image_prompt(reference, IMAGES)
    expected = reference.generate(prompt.prepared, NUM_TOKENS)
    model = load_cuda(tmp_path)
    layout = layout_of(model, LAYOUT)
    for item in prompt.items:
        model.media.cache.put(0, item.identifier, model.media.tower.encode(item), 0)
    driver = Driver(model.make_runner(layout), layout)
    driver.add(0, prompt.token_ids, ALL, media=prompt.spans)

    driver.generate(NUM_TOKENS)

    assert driver.requests[0].output == expected.token_ids
    for (ids, values, _), row in zip(driver.requests[0].logprobs, expected.logprobs.numpy(), strict=True):
        np.testing.assert_allclose(values, row[ids], atol=1e-4)


def test_audio_gives_the_logprobs_of_the_whole_model(tmp_path, load_cuda):
    save_audio_model(tmp_path, "qwen2_audio")
    reference = AudioReference(tmp_path)
    prompt = audio_prompt(reference, ["Compare ", samples(1.3), " with ", samples(0.6, seed=1)])
    expected = reference.generate(prompt.prepared, NUM_TOKENS)
    model = load_cuda(tmp_path)
    layout = layout_of(model, LAYOUT)
    for item in prompt.items:
        model.media.cache.put(0, item.identifier, model.media.tower.encode(item), 0)
    driver = Driver(model.make_runner(layout), layout)
    driver.add(0, prompt.token_ids, ALL, media=prompt.spans)

    driver.generate(NUM_TOKENS)

    assert driver.requests[0].output == expected.token_ids
    for (ids, values, _), row in zip(driver.requests[0].logprobs, expected.logprobs.numpy(), strict=True):
        np.testing.assert_allclose(values, row[ids], atol=1e-4)


@pytest.fixture
def smolvlm(tmp_path):
    save_vision_model(tmp_path, "smolvlm")
    return tmp_path


def test_embeddings_have_the_type_of_activations(smolvlm, load_cuda):
    prompt = image_prompt(VisionReference(smolvlm), IMAGES[:1])
    tower = load_cuda(smolvlm, dtype="bfloat16").media.tower

    encoded = tower.encode(prompt.items[0])

    assert isinstance(encoded.rows, torch.Tensor)
    assert (encoded.rows.dtype, tower.embed_bytes) == (torch.bfloat16, 2 * encoded.rows.shape[1])


def test_the_tower_is_counted_and_sleeps_with_the_model(smolvlm, load_cuda):
    model = load_cuda(smolvlm)
    without = load_cuda(smolvlm, takes_media=False)
    tower, prompt = model.media.tower, image_prompt(VisionReference(smolvlm), IMAGES[:1])
    expected = tower.encode(prompt.items[0]).rows.clone()

    assert without.media is None
    assert model.info.weights_size_bytes == without.info.weights_size_bytes + tower.size_bytes
    model.sleep()
    assert not any(tensor.untyped_storage().nbytes() for tensor in tensors_in(tower))
    model.wake_up()
    assert torch.equal(tower.encode(prompt.items[0]).rows, expected)


def test_memory_for_images_is_not_left_to_keys_and_values(smolvlm, load_cuda):
    device = CudaDevice(WorkerSettings(device="cuda"), HostAccelerator)
    model = load_cuda(smolvlm, enforce_eager=True)  # measuring graphs as well takes the interpreter 15 s
    device.set_up()

    text, images = (
        device.available_memory(model, utilization=0.5, max_num_batched_tokens=8, max_num_encoder_tokens=most)
        for most in (0, 100)
    )

    cache = 100 * model.info.hidden_size * 4
    assert text - images == cache + model.media.tower.activation_bytes(100)


def test_an_image_that_the_tower_cannot_read_fails_alone(smolvlm, load_cuda):
    tower = load_cuda(smolvlm).media.tower

    with pytest.raises(InvalidRequest, match="has no tensor 'pixel_values'"):
        tower.encode(EncoderItem("a", "image", {}, 1))


def test_an_image_without_room_on_the_device_is_refused_with_the_numbers(smolvlm, load_cuda, monkeypatch):
    prompt, tower = image_prompt(VisionReference(smolvlm), IMAGES[:1]), load_cuda(smolvlm).media.tower

    def no_room(**_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(tower._module, "get_image_features", no_room)

    with pytest.raises(FailedPrecondition, match=r"A media item of \d+ embeddings does not fit the device: \d+ of \d+ bytes"):
        tower.encode(prompt.items[0])


def test_a_lost_device_is_no_error_of_an_image(smolvlm, load_cuda, monkeypatch):
    prompt, tower = image_prompt(VisionReference(smolvlm), IMAGES[:1]), load_cuda(smolvlm).media.tower

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(tower._module, "get_image_features", lost)
    monkeypatch.setattr(tower._accelerator, "check", lost)

    with pytest.raises(RuntimeError, match="illegal memory access"):
        tower.encode(prompt.items[0])
