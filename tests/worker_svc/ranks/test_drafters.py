"""Draft models and draft heads beside a model on several ranks: the leader drafts alone, with the proposals of one rank."""

from itertools import product
from pathlib import Path

import pytest
import torch

from tests.eagle3_files import save_eagle3
from tests.grids import grid
from tests.mtp_files import KINDS, save_mtp, save_qwen_mtp
from tests.worker_svc.conftest import GREEDY, Driver, save_tiny, tiny_config
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.ranks.groups import open_group
from tests.worker_svc.ranks.in_turns import InTurns
from tests.worker_svc.runner import test_worker_drafts_with_states as with_states
from tests.worker_svc.runner.proposals import proposals_of
from tests.worker_svc.runner.test_draft_heads import MtpReference
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu_model import CpuModel

LAYOUT = KvLayout(num_blocks=200, block_size=16, max_model_len=256, max_num_seqs=16, max_num_batched_tokens=64)
SAMPLINGS = (GREEDY, SamplingSpec(seed=6, temperature=0.7, top_k=30, top_p=0.9))
SIZES = {"hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 7}
SHAPES = [(2, 1), (1, 2), (1, 3), (2, 2)]
"""Shards and stages."""
LAYERS_ON_EVERY_STAGE = {"eagle_aux_hidden_state_layer_ids": [6, 0, 3]}


@pytest.fixture(scope="module", params=["draft_model", "eagle3", *KINDS])
def drafted(request, tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """A model, and the options of its drafter."""
    directory = tmp_path_factory.mktemp(request.param)
    target = directory / "target"
    if request.param in KINDS:
        save_mtp(target, request.param)
        return target, {"draft_method": "mtp"}
    save_tiny(target, tiny_config("LlamaForCausalLM", **SIZES))
    if request.param == "draft_model":
        return target, {"draft_method": "draft_model", "draft_model": str(target)}
    return target, {"draft_method": "eagle3", "draft_model": str(save_eagle3(directory / "draft", **LAYERS_ON_EVERY_STAGE))}


@pytest.fixture(scope="module")
def one(drafted, cpu) -> CpuModel:
    """The model with its drafter on one rank."""
    path, options = drafted
    drafter = Path(options["draft_model"]) if "draft_model" in options else None
    request = LoadRequest("m", path, draft_method=options["draft_method"], draft_path=drafter)
    return cpu.load_model(request, lambda *_: None)


def run(driver: Driver) -> tuple[list[dict[int, list[int]]], dict[int, list[int]]]:
    """Run seven steps, each of which verifies the proposals of the one before; return all proposals, and the outputs.

    Prompts are computed in two chunks. A request is preempted after the third step, and comes again with its output.
    """
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 36 + 3 * handle), sampling)
    driver.step(dict.fromkeys(driver.requests, 7), num_spec_tokens=3)
    proposals = [proposals_of(driver.step({handle: driver.remaining(handle) for handle in driver.requests}, num_spec_tokens=3))]
    for number in range(7):
        drafts = {handle: proposals[-1].get(handle, []) for handle in driver.requests}
        proposals.append(proposals_of(driver.verify(drafts, num_spec_tokens=3)))
        if number == 2:
            again = driver.remove(1)
            request = driver.add(1, again.prompt, again.sampling)
            request.output, request.num_tokens = again.output, len(again.prompt) + len(again.output)
            proposals[-1] |= proposals_of(driver.step({1: driver.remaining(1)}, num_spec_tokens=3))
    return proposals, {handle: each.output for handle, each in driver.requests.items()}


@pytest.fixture(scope="module")
def expected(one) -> tuple[list[dict[int, list[int]]], dict[int, list[int]]]:
    """Proposals and outputs of one rank."""
    return run(Driver(one.make_runner(LAYOUT), LAYOUT))


# Each kind of drafter beside shards and stages at once; every shape with the kind that reads hidden states of several stages.
@pytest.mark.parametrize(
    ("drafted", "shape"),
    grid(product(["draft_model", "eagle3", *KINDS], SHAPES), lambda kind, shape: shape == (2, 2) or kind == "eagle3"),
    indirect=["drafted"],
    ids=str,
)
def test_proposals_and_tokens_are_those_of_one_rank(drafted, expected, shape, tmp_path):
    path, options = drafted
    assert any(len(drafts) == 3 for step in expected[0] for drafts in step.values())

    with open_group(tmp_path, *shape) as group:
        group.load(path, LAYOUT, **options)
        assert run(Driver(group, LAYOUT)) == expected


def test_steps_in_flight_bring_the_proposals_of_one_after_the_other(drafted, one, tmp_path):
    """Each plan asks for proposals, while a step of another request is in flight."""
    path, options = drafted
    expected = {}
    for handle, sampling in enumerate(SAMPLINGS):
        driver = Driver(one.make_runner(LAYOUT), LAYOUT)
        driver.add(handle, range(20 + handle, 36 + 3 * handle), sampling)
        expected[handle] = [proposals_of(driver.step({handle: driver.remaining(handle)}, num_spec_tokens=3)) for _ in range(6)]

    with open_group(tmp_path, 1, 2) as group:
        group.load(path, LAYOUT, **options)
        drivers = [Driver(group, LAYOUT), Driver(group, LAYOUT)]
        turns = InTurns(group, drivers)
        for handle, (driver, sampling) in enumerate(zip(drivers, SAMPLINGS, strict=True)):
            driver._step_id, driver._free = 1000 * handle, driver._free[handle::2]
            driver.add(handle, range(20 + handle, 36 + 3 * handle), sampling)
        found = turns.run(6, num_spec_tokens=3)

    assert [[proposals_of(result) for result in found[number::2]] for number in range(2)] == [expected[0], expected[1]]


@pytest.mark.parametrize("number", [0, 1], ids=["leader", "member"])
def test_a_step_that_fails_leaves_nothing_to_the_steps_of_the_next_group(drafted, number, tmp_path):
    """The leader fails when hidden states have come back, the member when it computes its layers. Weights and runners stay."""
    path, options = drafted
    with open_group(tmp_path, 1, 2) as group:
        group.load(path, LAYOUT, **options)
        before, leader, failing = run(Driver(group, LAYOUT)), group.ranks[0], group.ranks[number].worker.cache.runner
        runner = leader.worker.cache.runner
        broken = "sampler" if number == 0 else "_part"
        kept = getattr(failing, broken)
        setattr(failing, broken, None)
        driver = Driver(group, LAYOUT)
        driver.add(9, range(40, 60))

        with pytest.raises((AttributeError, RuntimeError)):
            driver.step({9: 20}, num_spec_tokens=3)

        setattr(failing, broken, kept)
        leader.compute.run(runner.forget_all)
        group.join()
        group.load(path, LAYOUT, **options)
        assert leader.worker.cache.runner is runner
        assert run(Driver(group, LAYOUT)) == before


@pytest.fixture(scope="module")
def beside_states(request, tmp_path_factory):
    """A model with states, the options of its drafter, and what it should propose; None: unknown."""
    directory = tmp_path_factory.mktemp(request.param)
    target, draft = directory / "target", directory / "draft"
    if request.param == "mtp":
        reference = MtpReference(*save_qwen_mtp(target, "qwen3_next"), is_qwen=True)
        return target, {"draft_method": "mtp"}, reference.propose
    save_family(target, "qwen3_next")
    if request.param == "eagle3":
        head = save_eagle3(draft, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
        return target, {"draft_method": "eagle3", "draft_model": str(head)}, None
    reference = save_tiny(draft, tiny_config("LlamaForCausalLM", hidden_size=64, num_attention_heads=4))
    return target, {"draft_method": "draft_model", "draft_model": str(draft)}, greedy_drafts(reference)


def greedy_drafts(reference: torch.nn.Module):
    @torch.inference_mode()
    def propose(tokens: list[int]) -> list[int]:
        ids = list(tokens)
        for _ in range(with_states.K):
            ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[-with_states.K :]

    return propose


@pytest.mark.parametrize(
    ("beside_states", "shape"),
    grid(
        product(["draft_model", "eagle3", "mtp"], SHAPES),
        lambda *case: case in {("draft_model", (2, 1)), ("eagle3", (2, 2)), ("mtp", (1, 2))},
    ),
    indirect=["beside_states"],
    ids=str,
)
def test_a_drafter_proposes_its_tokens_beside_states_and_changes_none(load, beside_states, shape, tmp_path):
    """Prompts in chunks, right and wrong drafts, and a preempted request; see `drafted` there."""
    path, options, propose = beside_states
    expected = with_states.driver_of(load(path)).generate(with_states.NUM_TOKENS)
    layout = KvLayout(num_blocks=60, block_size=16, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=512)

    with open_group(tmp_path, *shape) as group:
        driver = with_states.prompted(Driver(group, group.load(path, layout, **options)))
        num_compared = with_states.drafted(driver, expected, propose)

    assert {handle: each.output for handle, each in driver.requests.items()} == expected
    assert num_compared > 20 or propose is None
