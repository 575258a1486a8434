"""Right and wrong drafts give models with states the tokens of a run without drafts: states contain no rejected draft."""

from itertools import product
from random import Random

import pytest

from tests.grids import grid
from tests.worker_svc.conftest import Driver
from tests.worker_svc.families.tiny_models import save_family
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core import request_table
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice

NUM_TOKENS = 20
FAMILIES = ("lfm2", "mamba", "falcon_mamba", "jamba", "mamba2", "granite_hybrid", "qwen3_next", "falcon_h1", "nemotron_h")
EVERY_SKILL = {"lfm2", "mamba", "mamba2", "qwen3_next"}
"""One of each kind of state; others have drafts of which some are right."""
SAMPLINGS = [
    SamplingSpec(temperature=0.0),
    SamplingSpec(seed=5),
    SamplingSpec(seed=6, temperature=0.8, top_k=20, top_p=0.9),
    SamplingSpec(temperature=0.0, presence_penalty=1.5, repetition_penalty=1.3),
]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    save_family(directory, request.param)
    device = CpuDevice(WorkerSettings(threads=1))
    device.set_up()
    return device.load_model(LoadRequest(str(directory), directory), lambda *_: None)


def prompted(model) -> Driver:
    """Return a driver with one request of each kind, whose prompts are computed."""
    size = max(group.block_size for group in model.kv_groups(16))
    layout = KvLayout(num_blocks=60, block_size=size, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=512)
    driver = Driver(model.make_runner(layout), layout)
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 40 + 3 * handle), sampling)
    driver.step({handle: driver.remaining(handle) for handle in driver.requests})
    return driver


@pytest.fixture(scope="module")
def expected(model) -> dict[int, list[int]]:
    """Tokens of a run without drafts."""
    return prompted(model).generate(NUM_TOKENS)


@pytest.mark.parametrize(
    ("model", "skill"),
    grid(product(FAMILIES, [0.0, 0.6, 1.0]), lambda family, skill: skill == 0.6 or family in EVERY_SKILL),
    indirect=["model"],
)
def test_tokens_are_those_of_a_run_without_drafts(model, expected, skill):
    drafting, random = prompted(model), Random(1)
    num_steps = 0

    while running := {handle: each for handle, each in drafting.requests.items() if len(each.output) < NUM_TOKENS}:
        drafts = {}
        for handle, request in running.items():
            begin = len(request.output)
            most = min(-request.num_tokens % drafting.layout.block_size, random.randint(0, 5))  # not beyond the state's block
            right = expected[handle][begin : min(begin + most, NUM_TOKENS - 1)]
            drafts[handle] = [token if random.random() < skill else random.randrange(320) for token in right]
        drafting.verify(drafts)
        num_steps += 1

    assert {handle: each.output for handle, each in drafting.requests.items()} == expected
    assert (num_steps < 0.8 * NUM_TOKENS) == (skill > 0)


def test_drafts_beyond_the_block_of_a_state_are_refused(model):
    driver = prompted(model)
    most = -driver.requests[0].num_tokens % driver.layout.block_size

    with pytest.raises(InvalidRequest, match=f"{most + 1} drafts .* beyond the block of {driver.layout.block_size} tokens"):
        driver.verify({0: [5] * (most + 1)})


def test_drafts_beyond_the_most_of_a_step_are_as_if_they_were_rejected(model, expected, monkeypatch):
    """The layers keep their inputs for all drafts of a step."""
    monkeypatch.setattr(request_table, "MOST_DRAFTS_WITH_STATES", 3)
    driver = prompted(model)
    room = {handle: min(2, -each.num_tokens % driver.layout.block_size) for handle, each in driver.requests.items()}

    result = driver.verify({handle: expected[handle][1 : 1 + most] for handle, most in room.items()})

    assert len(result.handles) == len(room) + min(3, sum(room.values()))
    assert driver.generate(NUM_TOKENS) == expected
