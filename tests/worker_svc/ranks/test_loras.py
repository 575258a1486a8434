"""Adapters on several ranks: shards and stages bring the tokens of merged checkpoints, several adapters and none in a batch."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.lora_files import merged, merged_experts, save_expert_lora, save_lora
from tests.worker_svc.conftest import Driver
from tests.worker_svc.families.tiny_models import FAMILIES, save_family
from tests.worker_svc.ranks.groups import Group, open_group
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.open import open_weights
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.ranks import Shard, Stage
from tetrad.worker_svc.devices.lora_parts import LoraPartReader, whole_reader
from tetrad.worker_svc.families.check import check_config
from tetrad.worker_svc.layers.linear import PlainLinear
from tetrad.worker_svc.layers.lora import AdaptedParameters, LoraRows
from tetrad.worker_svc.layers.parameters import HostParameters
from tetrad.worker_svc.models.host import HostDecoder

LIMITS = LoraLimits(max_loras=4, max_lora_rank=16, max_cpu_loras=4)
PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 17, 40, 33, 5, 20)]
EVERYTHING = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|lm_head|embed_tokens"
LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=0, num_prompt_logprobs=0)
SHAPES = [(1, 2), (1, 3), (2, 1), (2, 2), (4, 1)]
"""Shards and stages."""
EVERY = bool(os.environ.get("TEST_ALL_FAMILIES"))
FUSED = [("phi3", "qkv_proj|gate_up_proj|o_proj|down_proj"), ("deepseek_v3", "q_b_proj|o_proj|shared_experts.up_proj")]

SKETCHED = ("gpt2", "qwen2_moe", "deepseek_v3", "gemma3")


def install(group: Group, lora_id: int, path: Path) -> list[bytes]:
    """Let every rank load an adapter, as the engine core's orders do; return the hash of its files from each."""
    digests = []
    for rank in group.ranks:
        loras = rank.compute.run(rank.worker.model_loras)
        packed = loras.read(path)
        rank.compute.run(loras.install, lora_id, packed)
        digests.append(packed.digest)
    return digests


def run_and_check(group: Group, model: Path, references: Mapping[int, torch.nn.Module], adapters: Mapping[int, Path], check):
    layout = group.load(model, loras=LIMITS)
    for lora_id, path in adapters.items():
        [_] = set(install(group, lora_id, path))
    driver, ids = Driver(group, layout), list(references)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, LOGPROBS, lora_id=ids[handle % len(ids)])

    outputs = driver.generate(6, chunk=23)

    for handle, prompt in enumerate(PROMPTS):
        expected = check(references[ids[handle % len(ids)]], prompt, outputs[handle])
        found = [values[0] for _, values, _ in driver.requests[handle].logprobs]
        np.testing.assert_allclose(found, expected, atol=1e-4)
        _check_prompt(references[ids[handle % len(ids)]], prompt, driver.requests[handle])


@torch.inference_mode()
def _check_prompt(reference: torch.nn.Module, prompt: list[int], request) -> None:
    if len(prompt) > 1:
        expected = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)[range(len(prompt) - 1), prompt[1:]]
        [(_, _, found)] = request.prompt_logprobs
        np.testing.assert_allclose(found[:, 0], expected, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES if EVERY else SHAPES[:4], ids=str)
def test_mixed_batch_equals_merged_checkpoints(shape, tmp_path, assert_greedy):
    reference = save_family(tmp_path / "model", "llama")
    a = save_lora(tmp_path / "a", reference, EVERYTHING, rank=8, seed=1)
    b = save_lora(tmp_path / "b", reference, "k_proj|up_proj|o_proj", rank=16, alpha=8, seed=2, use_rslora=True)
    references = {0: reference, 1: merged(reference, a), 2: merged(reference, b)}
    with open_group(tmp_path, *shape) as group:
        run_and_check(group, tmp_path / "model", references, {1: a, 2: b}, assert_greedy)


@pytest.mark.parametrize(("family", "modules"), FUSED)
def test_fused_modules_are_cut_as_their_parts_are(family, modules, tmp_path, assert_greedy):
    reference = save_family(tmp_path / "model", family)
    adapter = save_lora(tmp_path / "adapter", reference, modules, rank=4, seed=3)
    with open_group(tmp_path, 2) as group:
        run_and_check(group, tmp_path / "model", {0: reference, 5: merged(reference, adapter)}, {5: adapter}, assert_greedy)


@pytest.mark.parametrize("shape", [(1, 2), (2, 1)], ids=str)
def test_experts_take_adapters(shape, tmp_path, assert_greedy):
    reference = save_family(tmp_path / "model", "qwen3_moe")
    adapter = save_expert_lora(tmp_path / "adapter", reference, rank=4, seed=3)
    with open_group(tmp_path, *shape) as group:
        changed = merged_experts(reference, adapter)
        run_and_check(group, tmp_path / "model", {0: reference, 5: changed}, {5: adapter}, assert_greedy)


def test_adapters_of_experts_are_refused_by_name_where_each_rank_has_experts_of_its_own(tmp_path):
    reference = save_family(tmp_path / "model", "qwen3_moe")
    adapter = save_expert_lora(tmp_path / "adapter", reference, rank=4, seed=3)
    with open_group(tmp_path, 2) as group:
        group.load(tmp_path / "model", loras=LIMITS, expert_parallel=True)
        for rank in group.ranks:
            with pytest.raises(
                ModelError, match=r"module model\.layers\.0\.mlp\.experts\.0\.\w+, which cannot be adapted on several"
            ):
                rank.worker.model_loras().read(adapter)


def test_an_adapter_of_one_layer_alone_is_taken_by_every_stage(tmp_path, assert_greedy):
    reference = save_family(tmp_path / "model", "llama")
    adapter = save_lora(tmp_path / "adapter", reference, r"layers\.2\.self_attn\.q_proj")
    with open_group(tmp_path, 1, 3) as group:
        run_and_check(group, tmp_path / "model", {0: reference, 1: merged(reference, adapter)}, {1: adapter}, assert_greedy)


@pytest.mark.parametrize("shape", [(1, 2), (2, 1)], ids=str)
def test_every_rank_refuses_an_adapter_of_another_model_alike(shape, tmp_path):
    """Also a stage that has none of the layers in question."""
    reference = save_family(tmp_path / "model", "llama")
    other = torch.nn.ModuleDict({"model": torch.nn.ModuleDict({"layers": torch.nn.ModuleDict({"9": torch.nn.Linear(4, 4)})})})
    wrong = {
        "rank 32; the limit is 16": save_lora(tmp_path / "large", reference, r"layers\.0\.self_attn\.q_proj", rank=32),
        "modules that the model does not have": save_lora(tmp_path / "other", other, "9"),
    }
    with open_group(tmp_path, *shape) as group:
        group.load(tmp_path / "model", loras=LIMITS)
        for text, path in wrong.items():
            for rank in group.ranks:
                with pytest.raises(ModelError, match=text):
                    rank.worker.model_loras().read(path)


@pytest.mark.parametrize("name", FAMILIES if EVERY else SKETCHED)
def test_the_modules_of_a_model_without_values_are_those_of_the_model(name, tmp_path):
    """Against them ranks check adapters, since none of them has the whole model."""
    save_family(tmp_path, name)
    source = open_weights(LoadRequest(str(tmp_path), tmp_path))
    config = check_config(source.config, "cpu")
    rows = LoraRows(whole_reader(config, LIMITS))
    HostDecoder(
        config, AdaptedParameters(HostParameters(WeightLoader(source, lambda *_: None), PlainLinear), rows, adapts_experts=True)
    )

    sketched = LoraPartReader(config, LIMITS, source.has, Shard(0, 1), Stage())

    assert sketched._sites == rows.sites
    assert len(rows.sites) > 2


def test_an_adapter_that_was_removed_fails_its_requests_alone(tmp_path):
    reference = save_family(tmp_path / "model", "llama")
    adapter = save_lora(tmp_path / "adapter", reference, "q_proj")
    with open_group(tmp_path, 1, 2) as group:
        layout = group.load(tmp_path / "model", loras=LIMITS)
        install(group, 1, adapter)
        for rank in group.ranks:
            rank.compute.run(rank.worker.model_loras().remove, 1)
        driver = Driver(group, layout)
        driver.add(0, PROMPTS[4], lora_id=1)
        driver.add(1, PROMPTS[4])

        result = group.execute(driver.plan({0: 5, 1: 5}))

    assert [(handle, error.reason) for handle, error in result.failures] == [(0, "LORA_NOT_LOADED")]
    assert result.handles.tolist() == [1]
