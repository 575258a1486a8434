"""Custom logits processors on the CPU worker: a request has the same tokens alone, in a batch, in chunks, after a preemption
and with drafts; an error fails its request alone.
"""

from random import Random

import pytest

from tests.worker_svc.conftest import Driver
from tests.worker_svc.ranks.groups import open_group
from tests.worker_svc.sampler.custom_processors import MODULE
from tetrad.services.errors import FailedPrecondition, InternalError, InvalidRequest
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.devices import import_processors
from tetrad.worker_svc.devices.cpu import CpuDevice

LAYOUT = KvLayout(num_blocks=200, block_size=16, max_model_len=256, max_num_seqs=8, max_num_batched_tokens=512)
NUM_TOKENS = 12
SAMPLINGS = [
    SamplingSpec(temperature=0.0, extra_args={"hash": 3.0}),
    SamplingSpec(seed=3, extra_args={"hash": 4.0}),
    SamplingSpec(seed=4, num_logprobs=2, frequency_penalty=1.0, extra_args={"hash": 2.5}),
    SamplingSpec(temperature=0.0, extra_args={"target": 40}),
    SamplingSpec(seed=5),
    SamplingSpec(temperature=0.0),
]
ALL = range(len(SAMPLINGS))


def load(path, kernels, *names):
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels=kernels))
    device.set_up()
    classes = import_processors([f"{MODULE}:{name}" for name in names])
    return device.load_model(LoadRequest(str(path), path, logits_processors=classes), lambda *_: None)


@pytest.fixture(scope="module", params=["native", "torch"])
def model(request, tiny_llama):
    return load(tiny_llama[0], request.param, "Target", "Hash", "Wrong")


def prompt_of(handle):
    return range(20 + handle, 45 + 2 * handle)


def driver_of(model, handles=ALL):
    driver = Driver(model.make_runner(LAYOUT), LAYOUT)
    for handle in handles:
        driver.add(handle, prompt_of(handle), SAMPLINGS[handle])
    return driver


@pytest.fixture(scope="module")
def expected(model):
    return driver_of(model).generate(NUM_TOKENS)


def test_processors_change_tokens(model, expected):
    plain = Driver(model.make_runner(LAYOUT), LAYOUT)
    plain.add(0, prompt_of(0))

    assert expected[3] == list(range(40, 40 + NUM_TOKENS))
    assert plain.generate(NUM_TOKENS)[0] != expected[0]


def test_tokens_are_the_same_alone_and_in_chunks(model, expected):
    for handle in ALL:
        assert driver_of(model, [handle]).generate(NUM_TOKENS, chunk=7)[handle] == expected[handle]


def test_tokens_are_the_same_after_a_preemption(model, expected):
    driver = driver_of(model)
    driver.generate(5)
    for handle in ALL:
        before = driver.remove(handle)
        again = driver.add(handle, prompt_of(handle), SAMPLINGS[handle])
        again.output, again.num_tokens = before.output, before.num_tokens

    assert driver.generate(NUM_TOKENS) == expected


@pytest.mark.parametrize("skill", [0.0, 0.7, 1.0])
def test_tokens_are_the_same_with_drafts(model, expected, skill):
    driver, random = driver_of(model), Random(1)
    driver.step({handle: driver.remaining(handle) for handle in driver.requests})

    while running := [handle for handle, each in driver.requests.items() if len(each.output) < NUM_TOKENS]:
        drafts = {}
        for handle in running:
            begin = len(driver.requests[handle].output)
            right = expected[handle][begin : min(begin + random.randint(0, 5), NUM_TOKENS - 1)]
            drafts[handle] = [token if random.random() < skill else random.randrange(320) for token in right]
        driver.verify(drafts)

    assert {handle: each.output for handle, each in driver.requests.items()} == expected


def failed(driver, scheduled, **extra):
    """Run a step and return its failures and its tokens, by handle."""
    result = finished(driver.runner.execute(driver.plan(scheduled, **extra)))
    return dict(result.failures), dict(zip(result.handles.tolist(), result.token_ids.tolist(), strict=True))


def test_an_error_fails_its_request_alone(model, expected):
    driver = driver_of(model, [0, 4])
    driver.add(8, prompt_of(0), SamplingSpec(temperature=0.0, extra_args={"wrong": "raises", "later": 1}))
    driver.add(9, prompt_of(0), SamplingSpec(extra_args={"target": "x"}))

    refused, first = failed(driver, {handle: driver.remaining(handle) for handle in driver.requests})
    raised, second = failed(driver, dict.fromkeys((0, 4, 8), 1))
    none, third = failed(driver, dict.fromkeys((0, 4, 8), 1))

    assert [(handle, type(error)) for handle, error in refused.items()] == [(9, InvalidRequest)]
    assert [(handle, type(error)) for handle, error in raised.items()] == [(8, InternalError)]
    assert none == {}
    for handle in (0, 4):
        assert [tokens[handle] for tokens in (first, second, third)] == expected[handle][:3]


@pytest.mark.parametrize("is_right", [True, False])
def test_an_error_behind_a_draft_comes_with_the_next_step(model, is_right):
    """The processor fails for the second place, which counts only if the draft before it is right."""
    plain = Driver(model.make_runner(LAYOUT), LAYOUT)
    plain.add(0, prompt_of(0))
    first, second = plain.generate(2)[0]
    driver = Driver(model.make_runner(LAYOUT), LAYOUT)
    driver.add(0, prompt_of(0), SamplingSpec(temperature=0.0, extra_args={"wrong": "raises", "later": 2}))
    driver.step({0: driver.remaining(0)})

    result = driver.verify({0: [second if is_right else second + 1]})
    failures, _ = failed(driver, {0: 1})

    assert driver.requests[0].output == [first, second]
    assert result.token_ids.tolist() == [second]
    assert [type(error) for error in failures.values()] == [InternalError]


def test_a_class_that_belongs_behind_the_temperature_ends_the_start(tiny_llama):
    model = load(tiny_llama[0], "torch", "Last")

    with pytest.raises(FailedPrecondition, match=r"Last cannot be used: is_argmax_invariant\(\) is True"):
        model.make_runner(LAYOUT)


@pytest.mark.parametrize("shape", [(2, 1), (1, 2)], ids=["shards", "stages"])
def test_the_rank_that_samples_applies_processors(tiny_llama, tmp_path, shape):
    greedy = [0, 3, 5]
    expected = driver_of(load(tiny_llama[0], "auto", "Target", "Hash"), greedy).generate(NUM_TOKENS)
    with open_group(tmp_path, *shape) as group:
        for rank in group.ranks:
            rank.worker._request.keywords["logits_processors"] = import_processors([f"{MODULE}:Target", f"{MODULE}:Hash"])
        driver = Driver(group, group.load(tiny_llama[0], LAYOUT))
        for handle in greedy:
            driver.add(handle, prompt_of(handle), SAMPLINGS[handle])

        assert driver.generate(NUM_TOKENS) == expected
