"""Prompts with images on the device, interpreted: rows of the encoder cache, positions on three axes, DeepStack's rows."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import PipelinedDriver, layout_of, record_graphs
from tests.worker_svc.cuda.image_models import add_prompt, give_images
from tests.worker_svc.cuda.launches import Launches
from tests.worker_svc.cuda.watching import execute
from tests.worker_svc.families.image_prompts import ImagePrompt, image_prompt
from tests.worker_svc.families.tiny_wrappers import save_wrapper
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import PromptEmbeds, SamplingSpec
from tetrad.worker_svc.devices.cuda_model import CudaModel

LAYOUT = KvLayout(num_blocks=80, block_size=16, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=128)
WITH_AXES = ("qwen2_5_vl", "qwen3_vl", "glm4v", "qwen3_5")
NAMES = (*WITH_AXES, "smolvlm")
PIECES = ([3, (4, 6), 5, (3, 2), 2], [5], [6, (2, 9)])
TEXT = 1
"""The prompt without images."""
NUM_TOKENS = 4
ALL = SamplingSpec(temperature=0.0, num_logprobs=-1)


@dataclass(frozen=True)
class Case:
    """A model on the device, transformers' own, and prompts with images."""

    model: CudaModel
    reference: torch.nn.Module
    prompts: dict[int, ImagePrompt]
    tolerance: float

    def driver(self, kind: type[Driver] = Driver, *, with_graphs: bool = False) -> Driver:
        layout = layout_of(self.model, LAYOUT)
        driver = kind(self.model.make_runner(layout), layout)
        if with_graphs:
            record_graphs(driver.runner)
        return driver

    def add(self, driver: Driver, *handles: int) -> Driver:
        for handle in handles:
            add_prompt(driver, handle, self.prompts[handle], ALL)
        return driver

    def check(self, driver: Driver) -> None:
        for handle, request in driver.requests.items():
            self.prompts[handle].check(request, self.reference, self.tolerance)


@pytest.fixture(scope="module", params=NAMES)
def case(request, load_cuda, tmp_path_factory) -> Case:
    name = request.param
    directory = tmp_path_factory.mktemp(name)
    reference = save_wrapper(directory, name)
    model = load_cuda(directory)
    facts = {"has_axes": name in WITH_AXES, "num_deep": 1 if name == "qwen3_vl" else 0}
    prompts = {handle: image_prompt(handle, pieces, **facts) for handle, pieces in enumerate(PIECES)}
    give_images(model, prompts.values())
    return Case(model, reference, prompts, tolerance=1e-3 if name == "qwen3_5" else 1e-4)


def test_images_beside_text(case):
    driver = case.add(case.driver(), *case.prompts)

    driver.generate(NUM_TOKENS)

    case.check(driver)


def test_chunks_that_begin_inside_an_image(case):
    driver = case.add(case.driver(), *case.prompts)

    driver.generate(NUM_TOKENS, chunk=10)

    case.check(driver)


def test_tokens_behind_images_are_at_shifted_positions_while_the_device_alone_knows_the_newest(case):
    driver = case.add(case.driver(PipelinedDriver), *case.prompts)

    for _ in range(NUM_TOKENS):
        driver.launch(driver.plan({handle: driver.remaining(handle) for handle in driver.requests}))
    driver.drain()

    case.check(driver)


@pytest.mark.parametrize("case", ["qwen2_5_vl", "smolvlm"], indirect=True)
def test_only_steps_with_a_part_of_an_image_run_without_a_graph(case):
    driver = case.driver(with_graphs=True)
    graphs = []
    for scheduled in ({0: 40}, {0: 1, 2: 20}, {0: 1, 2: 4}, {0: 1, 2: 1, TEXT: 5}, {0: 1, 2: 1, TEXT: 1}):
        case.add(driver, *(handle for handle in scheduled if handle not in driver.requests))
        with Launches() as launches:
            driver.step(scheduled)
        graphs.append(launches.graphs)

    assert graphs == [0, 0, 0, 1, 1]
    case.check(driver)


@pytest.mark.parametrize("case", ["qwen3_vl"], indirect=True)
def test_text_between_and_behind_images_runs_as_graphs(case):
    """In chunks of 3, 24, 5, 6 and 2 tokens, which are those of the pieces."""
    driver = case.driver(with_graphs=True)
    case.add(driver, 0)
    graphs = []
    for count in (3, 24, 5, 6, 2, 1):
        with Launches() as launches:
            driver.step({0: count})
        graphs.append(launches.graphs)

    assert graphs == [1, 0, 1, 0, 1, 1]
    case.check(driver)


@pytest.mark.parametrize("case", ["qwen2_5_vl", "qwen3_5"], indirect=True)
@pytest.mark.parametrize("with_graphs", [False, True])
def test_drafts_behind_images_are_verified_at_shifted_positions(case, with_graphs):
    driver = case.add(case.driver(with_graphs=with_graphs and case.model.decoder.host_steps is None), *case.prompts)
    expected = case.add(case.driver(), *case.prompts).generate(NUM_TOKENS)
    driver.step({handle: driver.remaining(handle) for handle in driver.requests})

    driver.verify({handle: [tokens[1], tokens[2], 319] for handle, tokens in expected.items()})

    assert {handle: request.output for handle, request in driver.requests.items()} == expected
    case.check(driver)


@pytest.mark.parametrize("case", ["qwen3_vl"], indirect=True)
def test_a_slot_of_an_ended_request_with_images_serves_text(case):
    layout = replace(LAYOUT, max_num_seqs=1)
    driver = Driver(case.model.make_runner(layout), layout)
    case.add(driver, 0).generate(NUM_TOKENS)
    driver.remove(0)

    case.add(driver, TEXT).generate(NUM_TOKENS)

    case.check(driver)


@pytest.mark.parametrize("case", ["qwen3_vl"], indirect=True)
def test_steps_with_images_are_launched_without_waiting(case, watch):
    driver = case.add(case.driver(), *case.prompts)

    found = [execute(driver, watch, scheduled) for scheduled in ({0: 10, 1: 5, 2: 7}, {0: 30, 1: 1, 2: 17}, {0: 1, 1: 1, 2: 1})]

    assert found == [[], [], []]


@pytest.mark.parametrize("case", ["smolvlm"], indirect=True)
def test_embeddings_and_images_of_different_requests_run_in_one_step(case):
    driver = case.add(case.driver(), 0)
    table = case.reference.get_input_embeddings().weight.detach().numpy()
    ids = case.prompts[TEXT].token_ids
    driver.add(TEXT, [0] * len(ids), ALL, prompt_embeds=PromptEmbeds(np.arange(len(ids)), table[np.array(ids)]))

    driver.generate(NUM_TOKENS)

    case.check(driver)


def test_an_image_that_is_not_in_the_cache_is_an_impossible_plan(tmp_path, load_cuda):
    save_wrapper(tmp_path, "smolvlm")
    model = load_cuda(tmp_path)
    give_images(model, [])
    driver = Driver(model.make_runner(LAYOUT), LAYOUT)
    add_prompt(driver, 0, image_prompt(0, PIECES[0]), ALL)

    with pytest.raises(InvalidRequest, match="media item 0 0, which is not in the encoder cache"):
        driver.step({0: 40})
