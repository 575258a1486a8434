"""Images on several ranks of the cuda device, interpreted: each rank whose layers read rows encodes every image itself."""

import numpy as np
import pytest

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import host_only
from tests.worker_svc.media.image_prompts import image_prompt
from tests.worker_svc.ranks.groups import Group, open_group
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import EncoderItem, SamplingSpec
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.ranks.towers import AbsentTower
from tetrad.worker_svc.devices.cuda import CudaDevice

pytestmark = host_only  # NCCL wants a card for each rank

LAYOUT = KvLayout(num_blocks=80, block_size=16, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=256)
CASES = [("qwen3_vl", (2, 1)), ("qwen3_vl", (1, 2)), ("qwen2_5_vl", (2, 2)), ("smolvlm", (1, 2)), ("gemma3", (2, 2))]
"""A kind of model; shards and stages."""
IMAGES = [picture(60, 40), picture(30, 90, 1)]
ALL = SamplingSpec(temperature=0.0, num_logprobs=-1)
NUM_TOKENS = 3


def device() -> CudaDevice:
    return CudaDevice(WorkerSettings(device="cuda", enforce_eager=True), HostAccelerator)


def encode(group: Group, item: EncoderItem) -> None:
    leader = group.ranks[0]
    leader.compute.run(lambda: leader.worker.encode(leader.worker._stream_id, item, 0))


def cached(group: Group, driver: Driver, identifier: str) -> list[bool]:
    """Return for each rank whether it has the embeddings of an image, after a step that all ranks have run."""
    driver.step(dict.fromkeys(driver.requests, 1))
    return group.each(lambda worker: worker.media.cache.get(identifier) is not None)


@pytest.mark.parametrize(("kind", "shape"), CASES, ids=lambda case: str(case).replace(" ", ""))
def test_logprobs_are_those_of_the_whole_model(kind, shape, tmp_path):
    """In chunks that begin inside images, if they may."""
    save_vision_model(tmp_path / "model", kind)
    reference = VisionReference(tmp_path / "model")
    prompt = image_prompt(reference, IMAGES)
    expected = reference.generate(prompt.prepared, NUM_TOKENS)

    with open_group(tmp_path, *shape, make_device=device) as group:
        driver = Driver(group, group.load(tmp_path / "model", LAYOUT, dtype="float32"))
        for item in prompt.items:
            encode(group, item)
        driver.add(0, prompt.token_ids, ALL, media=prompt.spans)
        driver.add(1, [5, 6, 7], ALL)
        is_whole = group.ranks[0].worker.media.tower.modalities[0].is_whole
        driver.generate(NUM_TOKENS, chunk=10_000 if is_whole else 20)

    assert driver.requests[0].output == expected.token_ids
    for (ids, values, _), row in zip(driver.requests[0].logprobs, expected.logprobs.numpy(), strict=True):
        np.testing.assert_allclose(values, row[ids], atol=1e-4)


def test_images_are_freed_on_every_rank_and_begin_anew_with_a_stream(tmp_path):
    save_vision_model(tmp_path / "model", "smolvlm")
    [item] = image_prompt(VisionReference(tmp_path / "model"), IMAGES[:1]).items

    with open_group(tmp_path, 2, make_device=device) as group:
        driver = Driver(group, group.load(tmp_path / "model", LAYOUT, dtype="float32"))
        leader = group.ranks[0]
        driver.add(0, [5, 6, 7])
        encode(group, item)
        before = cached(group, driver, item.identifier)
        plan = driver.plan({0: 1}, freed_media=(item.identifier,))
        leader.compute.run(lambda: leader.worker.execute(leader.worker._stream_id, plan)).wait()
        freed = cached(group, driver, item.identifier)
        encode(group, item)
        leader.compute.run(lambda: leader.worker.begin_stream(2))
        encode(group, EncoderItem("b", item.modality, item.tensors, item.num_embeds))
        anew = Driver(group, LAYOUT)
        anew.add(0, [5, 6, 7])

        assert (before, freed) == ([True, True], [False, False])
        assert cached(group, anew, item.identifier) == [False, False]
        assert cached(group, anew, "b") == [True, True]


def test_an_image_that_cannot_be_encoded_fails_alone(tmp_path):
    save_vision_model(tmp_path / "model", "smolvlm")

    with open_group(tmp_path, 2, make_device=device) as group:
        driver = Driver(group, group.load(tmp_path / "model", LAYOUT, dtype="float32"))
        with pytest.raises(InvalidRequest, match="has no tensor 'pixel_values'"):
            encode(group, EncoderItem("a", "image", {}, 1))
        driver.add(0, [5, 6, 7])

        assert len(driver.generate(2)[0]) == 2


def test_only_ranks_that_encode_have_the_weights_of_the_tower(tmp_path):
    """The leader has the last layers, and answers for images; the first layers read their rows."""
    save_vision_model(tmp_path / "model", "smolvlm")

    with open_group(tmp_path, 1, 3, make_device=device) as group:
        group.load(tmp_path / "model", LAYOUT, dtype="float32")
        towers = [rank.worker.media.tower for rank in group.ranks]

    assert [isinstance(tower, AbsentTower) for tower in towers] == [False, True, False]
    assert [bool(tower.size_bytes) for tower in towers] == [True, False, True]
