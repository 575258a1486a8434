"""Ranks of the cuda device that divide the experts among them, interpreted, with gloo: the tokens of one rank."""

import os

import pytest

from tests.lora_files import merged, save_expert_lora, save_lora
from tests.worker_svc.checkpoint.packed_weights.test_stacked_experts import write_model
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import host_only, layout_of
from tests.worker_svc.cuda.test_ranks import LAYOUT, SEEDED, device, recording
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.ranks.groups import open_group
from tests.worker_svc.ranks.test_expert_parallel import WITH_EXPERTS
from tests.worker_svc.ranks.test_loras import LIMITS, install
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.cuda import experts
from tetrad.worker_svc.devices import cuda_programs
from tetrad.worker_svc.model_facts.sharding import shard_config

pytestmark = host_only

EVERY = bool(os.environ.get("TEST_ALL_FAMILIES"))
WITH_OTHER_LAYERS = ("olmoe", "jamba", "granite_hybrid", "nemotron_h", "lfm2_moe", "qwen3_next", "qwen3_5_moe", "glm4_moe_lite")
CASES = (
    [(name, 2) for name in (*WITH_EXPERTS, *WITH_OTHER_LAYERS)]
    if EVERY
    else [("qwen2_moe", 2), ("gpt_oss", 4), ("deepseek_v3", 2)]
)
"""A shared expert with a gate beside an MLP, biases of stacked experts, groups of experts and latent attention."""


def answers(driver: Driver) -> dict[int, list[int]]:
    """Generate for two prompts, one of which chooses its tokens at random."""
    driver.add(0, range(5, 17), SamplingSpec(temperature=0.0))
    driver.add(1, range(30, 34), SEEDED)
    return driver.generate(3)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_tokens_are_those_of_one_rank_and_each_rank_has_its_experts_alone(name, size, load_cuda, tmp_path, monkeypatch):
    parts = []
    monkeypatch.setattr(
        cuda_programs, "shard_config", lambda *args, **given: parts.append(shard_config(*args, **given)) or parts[-1]
    )
    save_family(tmp_path / "model", name)
    model = load_cuda(tmp_path / "model", enforce_eager=True)
    layout = layout_of(model, LAYOUT)
    expected = answers(Driver(model.make_runner(layout), layout))

    with open_group(tmp_path, size, make_device=device) as group:
        layout = group.load(tmp_path / "model", LAYOUT, dtype="float32", expert_parallel=True)
        found = answers(Driver(group, layout))

    assert found == expected
    own = [layer.experts for part in parts for layer in part.layers if layer.experts]
    assert {each.numbers for each in own} == {range(*Shard(n, size).bounds(own[0].num_experts)) for n in range(size)}


def test_recorded_steps_sum_the_experts_of_all_ranks(load_cuda, tmp_path):
    """Graphs record how pairs of tokens and experts are grouped: it depends on no choice."""
    save_family(tmp_path / "model", "mixtral", num_hidden_layers=1)
    model = load_cuda(tmp_path / "model", enforce_eager=True)
    expected = answers(Driver(model.make_runner(LAYOUT), LAYOUT))

    with open_group(tmp_path, 2, make_device=recording) as group:
        group.load(tmp_path / "model", LAYOUT, dtype="float32", expert_parallel=True)
        group.warm_up()
        assert answers(Driver(group, LAYOUT)) == expected


def test_quantized_experts_stay_quantized_and_each_rank_holds_half_of_them(load_cuda, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        pytest.fail("the experts of a layer are not stacked")

    monkeypatch.setattr(experts, "AllExperts", fail)
    quantized, _ = write_model(tmp_path, "granite_moe", "int4 with zeros")
    model = load_cuda(quantized, enforce_eager=True)
    expected = answers(Driver(model.make_runner(LAYOUT), LAYOUT))

    with open_group(tmp_path, 2, make_device=device) as group:
        group.load(quantized, LAYOUT, dtype="float32", expert_parallel=True)
        sizes = [rank.worker.snapshot().model.weights_size_bytes for rank in group.ranks]
        found = answers(Driver(group, LAYOUT))

    assert found == expected
    assert max(sizes) < 0.55 * model.info.weights_size_bytes


def test_an_expert_whose_size_ranks_do_not_divide_is_whole_on_one_of_them(tmp_path):
    """Three experts on two ranks."""
    save_family(tmp_path / "model", "mixtral", intermediate_size=33, num_local_experts=3)

    with open_group(tmp_path, 2, make_device=device) as group:
        group.load(tmp_path / "model", LAYOUT, dtype="float32", expert_parallel=True)
        sizes = [rank.worker.snapshot().model.num_parameters for rank in group.ranks]

    assert sizes[0] != sizes[1]


@pytest.mark.parametrize(
    ("family", "size", "text"),
    [
        ("qwen3", 2, "enable_expert_parallel divides experts, and this model has none"),
        (
            "mixtral",
            5,
            "enable_expert_parallel divides 4 experts among the 5 ranks of tensor_parallel_size; use at most 4 ranks",
        ),
    ],
)
def test_what_has_too_few_experts_is_refused_in_one_line(family, size, text, tmp_path):
    save_family(tmp_path / "model", family)

    with open_group(tmp_path, size, make_device=device) as group, pytest.raises(ModelError, match=text):
        group.load(tmp_path / "model", LAYOUT, expert_parallel=True)


def test_adapters_of_attention_are_divided_and_those_of_experts_are_refused_by_name(assert_greedy, tmp_path):
    reference = save_family(tmp_path / "model", "qwen3_moe", num_hidden_layers=1)
    adapter = save_lora(tmp_path / "adapter", reference, "q_proj|o_proj", rank=4, seed=1)
    of_experts = save_expert_lora(tmp_path / "experts", reference, rank=4, seed=3)

    with open_group(tmp_path, 2, make_device=device) as group:
        group.load(tmp_path / "model", LAYOUT, dtype="float32", expert_parallel=True, loras=LIMITS)
        [_] = set(install(group, 1, adapter))
        for rank in group.ranks:
            with pytest.raises(ModelError, match=r"model\.layers\.0\.mlp\.experts\.0\.\w+"):
                rank.compute.run(rank.compute.run(rank.worker.model_loras).read, of_experts)
        driver = Driver(group, LAYOUT)
        driver.add(0, range(5, 9), SamplingSpec(temperature=0.0), lora_id=1)
        outputs = driver.generate(3)

    assert_greedy(merged(reference, adapter), list(range(5, 9)), outputs[0])
