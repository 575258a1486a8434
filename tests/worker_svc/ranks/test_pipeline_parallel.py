"""Stages of a pipeline give the tokens of one rank, also with steps of different requests in flight."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.worker_svc.conftest import GREEDY, LAYOUT, Driver, tiny_config
from tests.worker_svc.families.tiny_models import FAMILIES, save_family
from tests.worker_svc.ranks.groups import open_group
from tests.worker_svc.ranks.in_turns import InTurns
from tests.worker_svc.ranks.test_tensor_parallel import PROMPTS, SEEDED, TOLERANCE, answers
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.plan import DraftTokens, GrammarRows
from tetrad.worker_svc.core.ranks import Stage
from tetrad.worker_svc.families.check import check_config, check_ranks
from tetrad.worker_svc.model_facts.stages import stage_config, stage_layers

SHAPES = [(1, 2), (1, 3), (2, 2)]
"""Shards and stages."""
EVERY = bool(os.environ.get("TEST_ALL_FAMILIES"))
CASES = (
    [(name, shape) for name in FAMILIES for shape in SHAPES]
    if EVERY
    else [
        *(("llama", shape) for shape in SHAPES),
        ("qwen2_moe", (1, 3)),
        ("qwen2", (2, 2)),
        ("deepseek_v3", (2, 2)),
        ("nemotron_h", (1, 3)),
        ("falcon_h1", (2, 2)),
        ("bloom", (2, 2)),
    ]
)
"""By default one with experts, one with latent attention, two with states, one of which has attention beside them, and one
with a norm of embeddings and linear biases.
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    """Each family is written once."""
    directories: dict[str, Path] = {}
    for name in dict.fromkeys(name for name, _ in CASES):
        directories[name] = tmp_path_factory.mktemp("family")
        save_family(directories[name], name)
    return directories


@pytest.mark.parametrize(("name", "shape"), CASES, ids=lambda case: str(case).replace(" ", ""))
def test_tokens_are_those_of_one_rank_and_log_probabilities_within_a_tolerance(saved, load, name, shape, tmp_path):
    alone = Driver(load(saved[name]).make_runner(LAYOUT), LAYOUT)
    expected = answers(alone)

    with open_group(tmp_path, *shape) as group:
        together = Driver(group, group.load(saved[name]))
        found = answers(together)

    assert found == expected
    for handle, request in alone.requests.items():
        for (ids, values, _), (other_ids, other_values, _) in zip(
            request.logprobs, together.requests[handle].logprobs, strict=True
        ):
            assert ids.tolist() == other_ids.tolist()
            np.testing.assert_allclose(other_values, values, atol=TOLERANCE)


def test_each_stage_reads_and_keeps_its_layers_alone(tiny_llama, load, tmp_path):
    path, _ = tiny_llama
    whole = load(path)

    with open_group(tmp_path, 1, 3) as group:
        group.load(path)
        infos = [rank.worker.snapshot().model for rank in group.ranks]
        blocks = [rank.worker.kv_groups(16)[0].block_size_bytes for rank in group.ranks]

    assert sum(info.num_parameters for info in infos) == whole.info.num_parameters
    assert blocks == [whole.kv_groups(16)[0].block_size_bytes // 3] * 3


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {}], ids=["int8", "float32"])
def test_whole_layers_run_on_the_native_program_with_weights_as_on_one_rank(tiny_llama, load, tmp_path, options):
    path, _ = tiny_llama
    alone = load(path, **options)
    driver = Driver(alone.make_runner(LAYOUT), LAYOUT)
    driver.add(1, PROMPTS[0], SEEDED)
    expected = driver.generate(20)[1]

    with open_group(tmp_path, 1, 2) as group:
        driver = Driver(group, group.load(path, **options))
        driver.add(1, PROMPTS[0], SEEDED)
        found = driver.generate(20)[1]
        sizes = [rank.worker.snapshot().model.weights_size_bytes for rank in group.ranks]
        [dtype] = {rank.worker.kv_groups(16)[0].dtype for rank in group.ranks}

    assert found == expected
    assert sum(sizes) == alone.info.weights_size_bytes
    assert dtype == alone.kv_groups(16)[0].dtype


@pytest.fixture
def in_turns(tiny_llama, tmp_path) -> Iterator[tuple[InTurns, Driver, Driver]]:
    with open_group(tmp_path, 1, 2) as group:
        layout = group.load(tiny_llama[0])
        first, second = Driver(group, layout), Driver(group, layout)
        second._free, first._free = first._free[::2], first._free[1::2]
        second._step_id = 1000
        yield InTurns(group, [first, second]), first, second


def test_steps_in_flight_bring_the_tokens_of_one_after_the_other(tiny_llama, load, in_turns):
    turns, first, second = in_turns
    alone = Driver(load(tiny_llama[0]).make_runner(LAYOUT), LAYOUT)
    for handle, prompt in enumerate(PROMPTS):
        for driver in (alone, second if handle else first):
            driver.add(handle, prompt, SEEDED if handle == 1 else GREEDY)

    turns.run(8)

    expected = alone.generate(8)
    assert first.requests[0].output == expected[0]
    assert [second.requests[handle].output for handle in (1, 2)] == [expected[1], expected[2]]


def test_a_request_that_leaves_while_its_step_is_under_way_disturbs_no_other(tiny_llama, load, in_turns):
    """Its row is not given to a new request before its step is completed."""
    turns, first, second = in_turns
    alone = Driver(load(tiny_llama[0]).make_runner(LAYOUT), LAYOUT)
    for handle, prompt in enumerate(PROMPTS):
        alone.add(handle, prompt, GREEDY)
    first.add(0, PROMPTS[0], GREEDY)
    first.add(7, PROMPTS[1], GREEDY)

    turns.begin(first, {0: len(PROMPTS[0]), 7: len(PROMPTS[1])})
    second._removed.append(7)  # a plan that comes before the result of its step
    for handle in (1, 2):
        second.add(handle, PROMPTS[handle], GREEDY)
    turns.begin(second, {1: len(PROMPTS[1]), 2: len(PROMPTS[2])})
    turns.end_one()
    first.requests.pop(7)
    turns.end_one()
    turns.run(5)

    expected = alone.generate(6)
    assert first.requests[0].output == expected[0]
    assert [second.requests[handle].output for handle in (1, 2)] == [expected[1], expected[2]]


def test_a_request_that_a_plan_removes_and_adds_while_its_step_is_under_way_begins_anew(tiny_llama, load, in_turns):
    """ResetPrefixCache preempts requests between two plans; one whose prompt is computed in chunks runs on in the next plan."""
    path, _ = tiny_llama
    turns, first, _ = in_turns
    expected = Driver(load(path).make_runner(LAYOUT), LAYOUT)
    for driver in (first, expected):
        driver.add(0, PROMPTS[0])
    turns.begin(first, {0: 16})
    first.remove(0)
    first.add(0, PROMPTS[0])

    turns.begin(first, {0: len(PROMPTS[0])})
    turns.end_one()
    turns.end_one()

    expected.step({0: len(PROMPTS[0])})
    assert first.requests[0].output == expected.requests[0].output


def test_a_step_whose_stream_has_ended_is_completed_for_the_next_one(tiny_llama, load, in_turns):
    """A call that ends while it waits for a result cancels its own future of it, and with that the step's, if it can."""
    turns, first, _ = in_turns
    alone = Driver(load(tiny_llama[0]).make_runner(LAYOUT), LAYOUT)
    for driver in (alone, first):
        driver.add(0, PROMPTS[0], GREEDY)
    turns.begin(first, {0: len(PROMPTS[0])})

    async def end_call() -> None:
        [(_, step)] = turns._under_way
        waiting = asyncio.wrap_future(step.result)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(end_call())
    turns.begin(first, {0: 1})
    turns.end_one()
    turns.end_one()

    assert first.requests[0].output == alone.generate(2)[0]


def test_a_step_in_flight_keeps_its_drafts_when_a_step_of_another_request_begins(tiny_llama, load, in_turns):
    turns, first, second = in_turns
    alone = Driver(load(tiny_llama[0]).make_runner(LAYOUT), LAYOUT)
    for driver, handle in ((alone, 0), (first, 0), (second, 1)):
        driver.add(handle, PROMPTS[handle], GREEDY)
    expected = alone.generate(6)[0]
    turns.run(2)
    drafts = DraftTokens(np.array([0]), np.array([3]), np.array(expected[2:5]))

    turns.begin(first, {0: 4}, drafts=drafts)
    turns.begin(second, {1: 1})
    turns.end_one()
    turns.end_one()

    assert first.requests[0].output == expected


def test_constraints_and_drafts_are_the_leaders_alone(tiny_llama, load, tmp_path):
    """A mask allows one token; drafts of the right tokens are accepted."""
    path, _ = tiny_llama
    allowed = np.zeros((1, 10), np.uint32)
    allowed[0, 77 // 32] = 1 << 77 % 32

    def run(driver: Driver, following: list[int]) -> list[int]:
        driver.add(1, [5, 6, 7], GREEDY)
        driver.step({1: 3}, grammar=GrammarRows(np.array([1]), allowed))
        driver.generate(4)
        driver.verify({1: following})
        driver.generate(8)
        return driver.requests[1].output[:8]

    expected = run(Driver(load(path).make_runner(LAYOUT), LAYOUT), [])
    with open_group(tmp_path, 1, 2) as group:
        driver = Driver(group, group.load(path))
        found = run(driver, expected[4:7])

    assert found[0] == 77
    assert found == expected


def test_a_stage_that_fails_fails_the_step_and_the_group_goes_on_when_it_has_met_again(tiny_llama, tmp_path):
    path, _ = tiny_llama
    with open_group(tmp_path, 1, 3) as group:
        driver = Driver(group, group.load(path))
        driver.add(1, PROMPTS[0], GREEDY)
        before = list(driver.generate(4)[1])
        part, group.ranks[1].worker.cache.runner._part = group.ranks[1].worker.cache.runner._part, None

        with pytest.raises(Exception, match=r"closed|reset|lost"):
            driver.step({1: 1})

        group.ranks[1].worker.cache.runner._part = part
        leader = group.ranks[0]
        leader.compute.run(leader.worker.cache.runner.forget_all)
        group.join()
        driver = Driver(group, group.load(path))
        driver.add(2, PROMPTS[0], GREEDY)
        assert driver.generate(4)[2] == before


def test_the_first_stage_has_fewer_layers_as_it_has_the_vocabulary():
    small = check_config(tiny_config("LlamaForCausalLM", num_hidden_layers=12, vocab_size=2000), "cpu")

    layers = [stage_layers(small, Stage(index, 3)) for index in range(3)]

    assert [each.start for each in layers[1:]] == [each.stop for each in layers[:-1]]
    assert (layers[0].start, layers[-1].stop) == (0, 12)
    assert 0 < len(layers[0]) < len(layers[1])
    assert stage_config(small, Stage(2, 3)).num_layers == len(layers[2])


@pytest.mark.parametrize("num_stages", [4, 64])
def test_more_stages_than_layers_are_refused(num_stages):
    with pytest.raises(ModelError, match=f"pipeline_parallel_size {num_stages} exceeds this model's 3 layers"):
        check_ranks(tiny_config("LlamaForCausalLM"), 1, num_stages)


@pytest.mark.parametrize("num_layers", [3, 4, 7, 30])
@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_stages_have_every_layer_once(num_layers, num_stages):
    config = check_config(tiny_config("LlamaForCausalLM", num_hidden_layers=num_layers), "cpu")

    layers = [stage_layers(config, Stage(index, num_stages)) for index in range(num_stages)]

    assert [layer for each in layers for layer in each] == list(range(num_layers))
    assert all(layers)
