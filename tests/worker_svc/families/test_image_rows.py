"""Decoders give transformers' log-probabilities for prompts with images, from rows, positions on axes, and DeepStack's rows."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.families.image_prompts import ImagePrompt, image_prompt, media_of
from tests.worker_svc.families.tiny_wrappers import save_wrapper
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.devices.cpu_model import CpuModel
from tetrad.worker_svc.families.registry import read_config

LAYOUT = KvLayout(num_blocks=200, block_size=16, max_model_len=512, max_num_seqs=16, max_num_batched_tokens=1024)
WITH_AXES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v")
NAMES = (*WITH_AXES, "llava_onevision", "smolvlm", "internvl", "mistral3", "lfm2_vl", "gemma3")
WITH_STATES = ("qwen3_5", "qwen3_5_moe", "lfm2_vl")
"""Models that torch runs. They enlarge rounding: transformers' results in float32 and float64 differ by up to 1e-3 as well."""
PIECES = ([3, (4, 6), 5, (3, 2), 2], [(5, 3), 40], [30, (2, 9)], [37])
TEXT = 3
"""The prompt without images."""
NUM_TOKENS = 8
ALL = SamplingSpec(temperature=0.0, num_logprobs=-1)


@dataclass(frozen=True)
class Case:
    """A model on a device, transformers' own, prompts with images, and these images."""

    model: CpuModel
    reference: torch.nn.Module
    prompts: list[ImagePrompt]
    media: ModelMedia
    tolerance: float

    def driver(self, handles: Iterable[int] = range(len(PIECES))) -> Driver:
        driver = Driver(self.model.host.make_runner(LAYOUT, media=self.media), LAYOUT)
        for handle in handles:
            driver.add(handle, self.prompts[handle].token_ids, ALL, media=self.prompts[handle].spans)
        return driver

    def check(self, driver: Driver) -> None:
        for handle, request in driver.requests.items():
            self.prompts[handle].check(request, self.reference, self.tolerance)


@pytest.fixture(scope="module")
def devices() -> dict[str, CpuDevice]:
    devices = {kernels: CpuDevice(WorkerSettings(threads=1, cpu_kernels=kernels)) for kernels in ("torch", "auto")}
    for device in devices.values():
        device.set_up()
    return devices


@pytest.fixture(scope="module", params=[(name, kernels) for name in NAMES for kernels in ("torch", "auto")], ids="-".join)
def case(request, devices, tmp_path_factory) -> Case:
    name, kernels = request.param
    directory = tmp_path_factory.mktemp(name)
    reference = save_wrapper(directory, name)
    model = devices[kernels].load_model(LoadRequest(name, directory), lambda *_: None)
    facts = {"has_axes": name in WITH_AXES, "num_deep": read_config(read_model_config(directory)).num_deep_layers}
    prompts = [image_prompt(seed, pieces, **facts) for seed, pieces in enumerate(PIECES)]
    return Case(model, reference, prompts, media_of(prompts, **facts), tolerance=5e-3 if name in WITH_STATES else 1e-4)


def test_together_with_text(case):
    driver = case.driver()

    driver.generate(NUM_TOKENS)

    case.check(driver)


def test_in_chunks_that_begin_inside_an_image(case):
    driver = case.driver()

    driver.generate(NUM_TOKENS, chunk=10)

    case.check(driver)


@pytest.mark.parametrize("case", [(name, "auto") for name in NAMES if name not in WITH_STATES], indirect=True, ids="-".join)
def test_text_beside_images_is_bit_for_bit_the_same_as_alone(case):
    alone, beside = case.driver([TEXT]), case.driver()

    for driver in (alone, beside):
        driver.generate(NUM_TOKENS)

    for (ids, values, _), (its_ids, its_values, _) in zip(
        alone.requests[TEXT].logprobs, beside.requests[TEXT].logprobs, strict=True
    ):
        np.testing.assert_array_equal(ids, its_ids)
        np.testing.assert_array_equal(values, its_values)
