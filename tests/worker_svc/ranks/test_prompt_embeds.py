"""Prompt embeddings on several ranks: the leader sends the rows of each step to the ranks that have the first layers."""

from itertools import product

import numpy as np
import pytest

from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.ranks.groups import open_group
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.plan import PromptEmbeds
from tetrad.worker_svc.devices.cpu import CpuDevice

CASES = list(product([(2, 1), (1, 2), (2, 2)], ("native", "torch")))
"""Shards and stages, and what computes them."""
PROMPT = np.arange(5, 35)
POSITIONS = np.array([1, 3, 4, 11, 29])


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llama")
    return directory, save_family(directory, "llama").get_input_embeddings().weight.detach().numpy()


@pytest.mark.parametrize(("shape", "kernels"), CASES)
def test_embeddings_in_place_of_ids_reach_the_first_layers(shape, kernels, llama, tmp_path):
    """Also of a prompt in chunks."""
    directory, table = llama
    settings = WorkerSettings(device="cpu", threads=1, cpu_kernels=kernels)
    with open_group(tmp_path, *shape, make_device=lambda: CpuDevice(settings)) as group:
        driver = Driver(group, group.load(directory, LAYOUT))
        driver.add(0, PROMPT)
        masked = np.where(np.isin(range(len(PROMPT)), POSITIONS), 0, PROMPT)
        driver.add(1, masked, prompt_embeds=PromptEmbeds(POSITIONS, table[PROMPT[POSITIONS]]))

        outputs = driver.generate(4, chunk=7)

    assert outputs[1] == outputs[0]
