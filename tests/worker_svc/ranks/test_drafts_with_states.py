"""Drafts for models with states on several ranks: every rank's states contain the accepted drafts alone."""

from pathlib import Path
from random import Random

import pytest

from tests.grids import grid
from tests.worker_svc.conftest import GREEDY, Driver
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.ranks.groups import open_group
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import SamplingSpec

LAYOUT = KvLayout(num_blocks=60, block_size=16, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=512)
SAMPLINGS = [GREEDY, SamplingSpec(seed=6, temperature=0.8, top_k=20, top_p=0.9), SamplingSpec(seed=5)]
NUM_TOKENS = 20
SHAPES = [(2, 1), (1, 2), (1, 3), (2, 2)]
"""Shards and stages. With three stages of mamba2 and nemotron_h, some stages have no layer with a state, or none but these."""
CASES = [
    *(("qwen3_next", shape) for shape in SHAPES),
    *(("nemotron_h", shape) for shape in SHAPES[1:3]),
    ("falcon_h1", (2, 1)),
    ("lfm2", (2, 2)),
    ("mamba2", (1, 2)),
    ("mamba", (2, 2)),
    *(("jamba", shape) for shape in SHAPES[:3]),
]
SHORT = {
    "qwen3_next": (2, 2),
    "nemotron_h": (1, 3),
    "falcon_h1": (2, 1),
    "lfm2": (2, 2),
    "mamba2": (1, 2),
    "mamba": (2, 2),
    "jamba": (1, 3),
}
"""The shape that `make test` runs of each family."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    """Each family is written once."""
    directories = {name: tmp_path_factory.mktemp(name) for name in dict.fromkeys(name for name, _ in CASES)}
    for name, directory in directories.items():
        save_family(directory, name)
    return directories


def prompted(driver: Driver) -> Driver:
    """Add one request of each kind, and compute their prompts in chunks."""
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 40 + 3 * handle), sampling)
    driver.step(dict.fromkeys(driver.requests, 9))
    driver.step({handle: driver.remaining(handle) for handle in driver.requests})
    return driver


def verified(driver: Driver, expected: dict[int, list[int]]) -> dict[int, list[int]]:
    """Generate with drafts of which about half are right; one request is preempted, and comes again with its output."""
    random, number = Random(1), 0
    while running := {handle: each for handle, each in driver.requests.items() if len(each.output) < NUM_TOKENS}:
        drafts = {}
        for handle, request in running.items():
            most = min(-request.num_tokens % driver.layout.block_size, random.randint(0, 5))  # not beyond the state's block
            right = expected[handle][len(request.output) :][: min(most, NUM_TOKENS - 1 - len(request.output))]
            drafts[handle] = [token if random.random() < 0.6 else random.randrange(320) for token in right]
        driver.verify(drafts)
        number += 1
        if number == 3:
            again = driver.remove(1)
            driver.add(1, again.prompt, again.sampling)
            request = driver.requests[1]
            request.output, request.num_tokens = again.output, len(again.prompt) + len(again.output)
            driver.step({1: driver.remaining(1)})
    return {handle: each.output for handle, each in driver.requests.items()}


@pytest.mark.parametrize(
    ("name", "shape"), grid(CASES, lambda name, shape: SHORT[name] == shape), ids=lambda case: str(case).replace(" ", "")
)
def test_tokens_are_those_of_one_rank_without_drafts(saved, load, name, shape, tmp_path):
    model = load(saved[name])
    size = max(group.block_size for group in model.kv_groups(16))
    layout = KvLayout(60, size, LAYOUT.max_model_len, LAYOUT.max_num_seqs, LAYOUT.max_num_batched_tokens)
    expected = prompted(Driver(model.make_runner(layout), layout)).generate(NUM_TOKENS)

    with open_group(tmp_path, *shape) as group:
        driver = prompted(Driver(group, group.load(saved[name], LAYOUT)))
        assert verified(driver, expected) == expected
