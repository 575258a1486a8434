"""Ranks that divide the experts among them give the tokens of one rank."""

import os

import numpy as np
import pytest

from tests.worker_svc.conftest import LAYOUT, Driver, tiny_config
from tests.worker_svc.families.gguf_files import write_gguf
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.ranks.groups import open_group
from tests.worker_svc.ranks.test_tensor_parallel import TOLERANCE, answers
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.devices import cpu_models
from tetrad.worker_svc.families.check import check_config, check_ranks
from tetrad.worker_svc.model_facts.sharding import check_size, shard_config

EVERY = bool(os.environ.get("TEST_ALL_FAMILIES"))
WITH_EXPERTS = (
    "llama4", "mixtral", "granite_moe", "gpt_oss", "qwen2_moe", "qwen3_moe", "glm4_moe", "deepseek_v2", "deepseek_v3"
)  # fmt: skip
CASES = (
    [(name, shape) for name in WITH_EXPERTS for shape in [(2, 1), (4, 1), (2, 2)]]
    if EVERY
    else [("qwen2_moe", (2, 1)), ("gpt_oss", (4, 1)), ("deepseek_v3", (2, 2)), ("mixtral", (2, 1))]
)
"""Shards and stages. A shared expert, biases of stacked experts, groups of experts and latent attention, an expert a tensor."""


@pytest.mark.parametrize(("name", "shape"), CASES, ids=lambda case: str(case).replace(" ", ""))
def test_tokens_are_those_of_one_rank_and_each_rank_has_its_experts_alone(load, name, shape, tmp_path, monkeypatch):
    parts = []
    monkeypatch.setattr(
        cpu_models, "shard_config", lambda *args, **given: parts.append(shard_config(*args, **given)) or parts[-1]
    )
    save_family(tmp_path / "model", name)
    alone = Driver(load(tmp_path / "model").make_runner(LAYOUT), LAYOUT)
    expected = answers(alone)

    with open_group(tmp_path, *shape) as group:
        together = Driver(group, group.load(tmp_path / "model", expert_parallel=True))
        found = answers(together)

    assert found == expected
    for handle, request in alone.requests.items():
        for (ids, values, _), (other_ids, other_values, _) in zip(
            request.logprobs, together.requests[handle].logprobs, strict=True
        ):
            assert ids.tolist() == other_ids.tolist()
            np.testing.assert_allclose(other_values, values, atol=TOLERANCE)
    experts = [layer.experts for part in parts for layer in part.layers if layer.experts]
    assert {each.numbers for each in experts} == {
        range(*Shard(index, shape[0]).bounds(experts[0].num_experts)) for index in range(shape[0])
    }


def test_ranks_divide_the_experts_of_a_gguf_file_with_tensors_of_each(load, tmp_path):
    file = tmp_path / "model.gguf"
    write_gguf(file, "mixtral of older files", save_family(tmp_path, "mixtral"))
    expected = answers(Driver(load(file, dtype="float32").make_runner(LAYOUT), LAYOUT))

    with open_group(tmp_path, 2, 1) as group:
        found = answers(Driver(group, group.load(file, expert_parallel=True, dtype="float32")))

    assert found == expected


def moe_config(num_experts: int) -> dict:
    return tiny_config(
        "MixtralForCausalLM", num_local_experts=num_experts, num_experts_per_tok=2, num_attention_heads=4, num_key_value_heads=4
    )


@pytest.mark.parametrize(("num_experts", "size"), [(8, 2), (5, 4), (6, 4)])
def test_every_expert_is_on_one_rank_and_none_is_cut(num_experts, size):
    config = check_config(moe_config(num_experts), "cpu")

    parts = [shard_config(config, Shard(index, size), experts=Shard(index, size)) for index in range(size)]

    for layer, whole in enumerate(config.layers):
        owned = [part.layers[layer].experts for part in parts]
        assert [number for each in owned for number in each.numbers] == list(range(num_experts))
        assert {each.intermediate_size for each in owned} == {whole.experts.intermediate_size}


def test_experts_of_a_size_that_ranks_do_not_divide_can_be_divided_whole():
    config = moe_config(8) | {"intermediate_size": 90}

    with pytest.raises(ModelError, match=r"tensor_parallel_size 4 does not divide .* MLPs of 90\. It may be: 1, 2\."):
        check_ranks(config, 4)
    check_ranks(config, 4, expert_parallel=True)


@pytest.mark.parametrize("size", [1, 2])
def test_a_model_without_experts_has_none_to_divide(size):
    with pytest.raises(ModelError, match="enable_expert_parallel divides experts, and this model has none"):
        check_ranks(tiny_config("LlamaForCausalLM"), size, expert_parallel=True)


def test_more_ranks_than_experts_are_refused():
    config = check_config(moe_config(3), "cpu")

    with pytest.raises(ModelError, match="divides 3 experts among the 4 ranks of tensor_parallel_size; use at most 3 ranks"):
        check_size(config, 4, expert_parallel=True)
