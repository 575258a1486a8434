"""Gemma 3's image tokens attend to their whole image, within a window: log-probabilities are transformers', for all splits."""

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.families.image_prompts import ImagePrompt, image_prompt, media_of
from tests.worker_svc.families.tiny_wrappers import save_wrapper
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice

LAYOUT = KvLayout(num_blocks=200, block_size=16, max_model_len=512, max_num_seqs=16, max_num_batched_tokens=1024)
PROMPTS = [
    image_prompt(seed, pieces)
    for seed, pieces in enumerate(([3, (4, 6), 5, (3, 2), 2], [(6, 6), 40], [30, (2, 9)], [20, (1, 1), 1, (15, 20), 7], [37]))
]
"""The window has 24 tokens: some images are larger."""
LARGE, TEXT = 3, 4
CHUNKS = {0: [2, 1, 24, 3, 2], 1: [36, 1], 2: [29, 1, 18], LARGE: [20, 2, 300, 3]}
"""The first chunks of each prompt with images."""
ALL = SamplingSpec(temperature=0.0, num_logprobs=-1)
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gemma3")
    return directory, save_wrapper(directory, "gemma3")


@pytest.fixture(scope="module", params=["torch", "native"])
def model(request, gemma):
    device = CpuDevice(WorkerSettings(threads=2, cpu_kernels=request.param))
    device.set_up()
    return device.load_model(LoadRequest("gemma3", gemma[0]), lambda *_: None)


@pytest.fixture
def driver(model) -> Driver:
    runner = model.host.make_runner(LAYOUT, media=media_of(PROMPTS, is_whole=True))
    return Driver(runner, LAYOUT, keeps_passed=True)


def add(driver: Driver, handle: int, prompt: ImagePrompt, **fields: object) -> None:
    driver.add(handle, prompt.token_ids, ALL, media=prompt.spans, **fields)


@torch.inference_mode()
def check(driver: Driver, reference: torch.nn.Module) -> None:
    for handle, request in driver.requests.items():
        prompt, ids = (*PROMPTS, PROMPTS[LARGE])[handle], torch.tensor([request.prompt + request.output[:-1]])
        embeddings, types = reference.get_input_embeddings()(ids), torch.zeros_like(ids)
        for span, image in zip(prompt.spans, prompt.images, strict=True):
            embeddings[0, span.offset : span.offset + span.length] = torch.from_numpy(image.rows)
            types[0, span.offset : span.offset + span.length] = 1
        logits = reference(inputs_embeds=embeddings, token_type_ids=types).logits[0, len(request.prompt) - 1 :]
        expected = logits.log_softmax(-1).numpy()
        assert len(request.output) >= NUM_TOKENS
        for (token_ids, values, _), row in zip(request.logprobs, expected, strict=True):
            np.testing.assert_allclose(values, row[token_ids], atol=1e-4)


def test_together_with_text(driver, gemma):
    for handle, prompt in enumerate(PROMPTS):
        add(driver, handle, prompt)

    driver.generate(NUM_TOKENS)

    check(driver, gemma[1])


def test_alone(driver, gemma):
    for handle, prompt in enumerate(PROMPTS):
        add(driver, handle, prompt)
        driver.generate(NUM_TOKENS)

    check(driver, gemma[1])


def test_in_chunks_that_end_between_images(driver, gemma):
    """Chunks also end directly before and behind an image, and inside the text."""
    for handle, prompt in enumerate(PROMPTS):
        add(driver, handle, prompt)
    for handle, counts in CHUNKS.items():
        for count in counts:
            driver.step({handle: count, TEXT: 1})

    driver.generate(NUM_TOKENS)

    check(driver, gemma[1])


@pytest.mark.parametrize("num_shared", [1, 2, 4])
def test_from_a_prefix_that_ends_inside_an_image(driver, gemma, num_shared):
    add(driver, LARGE, PROMPTS[LARGE])
    driver.generate(NUM_TOKENS)
    shared = [table[:num_shared] for table in driver.requests[LARGE].tables]

    add(driver, len(PROMPTS), PROMPTS[LARGE], shared=shared, computed=16 * num_shared)
    driver.generate(NUM_TOKENS)

    check(driver, gemma[1])
