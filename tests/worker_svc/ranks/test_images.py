"""Images on several ranks: the leader alone has the tower, and sends the rows of each step to the ranks that read them."""

import numpy as np
import pytest

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.media.image_prompts import ImagePrompt, image_prompt
from tests.worker_svc.ranks.groups import open_group
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice

KINDS = ("smolvlm", "qwen2_5_vl", "qwen3_vl", "gemma3")
SHAPES = [(2, 1), (1, 2), (2, 2)]
"""Shards and stages."""
CASES = [(kind, shape, "auto") for kind in KINDS for shape in SHAPES]
CASES += [("qwen3_vl", (2, 2), "torch"), ("gemma3", (2, 2), "torch")]
IMAGES = [picture(60, 40), picture(30, 90, 1)]
ALL = SamplingSpec(temperature=0.0, num_logprobs=-1)
NUM_TOKENS = 4


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """For each kind its directory, a prompt with images, and what transformers generates after it."""
    found = {}
    for kind in KINDS:
        directory = tmp_path_factory.mktemp("vision")
        save_vision_model(directory, kind)
        reference = VisionReference(directory)
        prompt = image_prompt(reference, IMAGES)
        found[kind] = directory, prompt, reference.generate(prompt.prepared, NUM_TOKENS)
    return found


def run(group, layout, prompt: ImagePrompt) -> Driver:
    """Run a prompt, in chunks if they may end inside images, beside a request of text; the leader encodes the images."""
    media = group.ranks[0].worker.media
    for item in prompt.items:
        media.cache.put(group.ranks[0].worker._stream_id, item.identifier, media.tower.encode(item), 0)
    driver = Driver(group, layout)
    driver.add(0, prompt.token_ids, ALL, media=prompt.spans)
    driver.add(1, [5, 6, 7], ALL)
    driver.generate(NUM_TOKENS, chunk=10_000 if media.tower.modalities[0].is_whole else 20)
    return driver


@pytest.mark.parametrize(("kind", "shape", "kernels"), CASES, ids=lambda case: str(case).replace(" ", ""))
def test_logprobs_are_those_of_the_whole_model(kind, shape, kernels, saved, tmp_path):
    directory, prompt, expected = saved[kind]
    settings = WorkerSettings(device="cpu", threads=1, cpu_kernels=kernels)

    with open_group(tmp_path, *shape, make_device=lambda: CpuDevice(settings)) as group:
        driver = run(group, group.load(directory, LAYOUT), prompt)
        towers = [rank.worker.media is not None for rank in group.ranks]

    assert towers == [True, *[False] * (len(towers) - 1)]
    assert driver.requests[0].output == expected.token_ids
    for (ids, values, _), row in zip(driver.requests[0].logprobs, expected.logprobs.numpy(), strict=True):
        np.testing.assert_allclose(values, row[ids], atol=1e-4)


def test_members_accept_the_limits_of_images(saved, tmp_path):
    with open_group(tmp_path, 1, 2) as group:
        group.load(saved["smolvlm"][0], LAYOUT)

        sizes = group.each(lambda worker: worker.available_memory(0.5, 64, max_num_encoder_tokens=100))

    assert min(sizes) > 0
