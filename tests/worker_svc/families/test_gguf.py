"""GGUF files of every architecture give transformers' tokens in floats, and nearly its log-probabilities in 8 bits."""

import gguf
import numpy as np
import pytest
import torch

from tests.worker_svc.families.gguf_files import CONVERSIONS, write_gguf
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.families.tiny_models import YARN, save_family
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.gguf_architectures import ARCHITECTURES
from tetrad.worker_svc.checkpoint.open import open_source

PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 17, 90)]
NUM_TOKENS = 16
PARTS = [
    *(f"self_attn.{name}_proj" for name in "qkv"),
    *(f"self_attn.{name}" for name in ("q_a_proj", "kv_a_proj_with_mqa")),
    *(f"{prefix}.{name}_proj" for prefix in ("mlp", "mlp.experts.2") for name in ("gate", "up")),
    *(f"mixer.in_{name}_proj" for name in ("gate", "x", "b", "c", "step", "query", "key", "value", "beta", "decay")),
    *(f"mixer.{name}_proj" for name in ("x", "out")),
]
AS_PUBLISHED = {
    "deepseek_v3": {"rope_scaling": YARN | {"mscale": YARN["mscale_all_dim"]}},
    "falcon 40b": {"bias": False},
    "falcon_mamba": {"mixer_rms_eps": 1e-6},
    "gemma2": {"query_pre_attn_scalar": 16},
    "glm4_moe": {"n_group": 1, "topk_group": 1},
    "llama4": {"attention_chunk_size": 8192, "floor_scale": 8192},
    "mpt with bounds": {"attn_config": {"clip_qkv": 1.5}},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"mlp_only_layers": []},
}
"""Values that files do not have, because all published models have these."""


@pytest.fixture(scope="module", params=CONVERSIONS)
def case(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    model = CONVERSIONS[request.param].model or request.param
    return request.param, directory, save_family(directory, model, **AS_PUBLISHED.get(request.param, {}))


def test_every_architecture_is_tried():
    tried = {gguf.MODEL_ARCH_NAMES[each.architecture] for each in CONVERSIONS.values()}

    assert tried == set(ARCHITECTURES)


def test_floats(case, load, make_driver):
    name, directory, reference = case
    write_gguf(directory / "model.gguf", name, reference, gguf.GGMLQuantizationType.F32)
    driver = make_driver(load(directory / "model.gguf", dtype="float32"))
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {handle: verified(reference, prompt, outputs[handle]) for handle, prompt in enumerate(PROMPTS)}


def test_experts_in_floats_of_a_model_that_torch_runs(tmp_path, load, make_driver):
    """Torch leaves quantized experts to native kernels, and computes those in floats itself."""
    reference = save_family(tmp_path, "qwen3_5_moe")
    write_gguf(tmp_path / "m.gguf", "qwen3_5_moe", reference)
    driver = make_driver(load(tmp_path / "m.gguf"))
    driver.add(0, PROMPTS[1])

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {0: verified(reference, PROMPTS[1], outputs[0])}


@pytest.mark.parametrize("number", [1, 2])
def test_layers_that_predict_several_tokens_are_not_used(number, tmp_path, load, make_driver):
    reference = save_family(tmp_path, "qwen3_5")
    metadata = {"block_count": 4 + number, "nextn_predict_layers": number}
    tensors = [f"blk.{4 + index}.nextn.enorm.weight" for index in range(number)]
    write_gguf(tmp_path / "m.gguf", "qwen3_5", reference, added=metadata, added_tensors=tensors)
    driver = make_driver(load(tmp_path / "m.gguf", dtype="float32"))
    driver.add(0, PROMPTS[1])

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {0: verified(reference, PROMPTS[1], outputs[0])}


def test_a_file_of_mistral3_without_a_scale_of_queries_is_a_mistral(tmp_path, load, make_driver):
    reference = save_family(tmp_path, "llama")
    write_gguf(tmp_path / "m.gguf", "llama", reference, architecture="mistral3")
    driver = make_driver(load(tmp_path / "m.gguf", dtype="float32"))
    driver.add(0, PROMPTS[1])

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {0: verified(reference, PROMPTS[1], outputs[0])}


def test_a_scaled_mistral3_whose_queries_are_not_scaled_has_the_gain_that_the_file_says(tmp_path, load, make_driver):
    rope = YARN | {"rope_theta": 1e4, "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.0}
    reference = save_family(tmp_path, "ministral3", rope_parameters=rope)
    write_gguf(tmp_path / "m.gguf", "ministral3", reference)
    driver = make_driver(load(tmp_path / "m.gguf", dtype="float32"))
    driver.add(0, PROMPTS[2])

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {0: verified(reference, PROMPTS[2], outputs[0])}


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_kind_of_scaling_is_linear(key, tmp_path, load, make_driver):
    reference = save_family(tmp_path, "llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4})
    write_gguf(tmp_path / "m.gguf", "llama", reference, added={key: 4.0})
    driver = make_driver(load(tmp_path / "m.gguf", dtype="float32"))
    driver.add(0, PROMPTS[1])

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {0: verified(reference, PROMPTS[1], outputs[0])}


def test_split_latents_beside_the_whole_are_not_used(tmp_path, load, make_driver):
    reference = save_family(tmp_path, "deepseek_v2")
    parts = ["blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"]
    write_gguf(tmp_path / "m.gguf", "deepseek_v2 of older files", reference, added_tensors=parts)
    driver = make_driver(load(tmp_path / "m.gguf", dtype="float32"))
    driver.add(0, PROMPTS[1])

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {0: verified(reference, PROMPTS[1], outputs[0])}


@pytest.mark.parametrize(
    ("name", "added", "tensors", "said"),
    [
        ("deepseek_v2", {"expert_count": 0}, [], "deepseek2 without experts"),
        ("deepseek_v2", {"attention.head_count": 5}, [], "attn_k_b.weight and .* which are not those of 5 heads"),
        ("deepseek_v2", {"expert_weights_norm": True}, [], "deepseek2 with weights of a softmax that are divided"),
        ("llama4", {"attention.sliding_window": 0}, [], "llama4 with another pattern of chunks"),
        ("falcon_h1", {}, ["blk.1.ssm_norm.weight"], "falcon-h1 with a norm in its Mamba2 layers"),
        ("glm4", {"rope.dimension_sections": [2, 3, 3, 0]}, [], "glm4 with sections of the rotary embedding"),
        ("granite_hybrid", {"rope.scaling.finetuned": True}, [], "granitehybrid with a rotary embedding"),
        ("ministral3", {"expert_count": 4}, [], "mistral3 with experts"),
        ("lfm2", {"attention.head_count_kv": 2}, [], "lfm2 without attention.head_count_kv of each layer"),
        ("lfm2", {"attention.head_count_kv": [2]}, [], "lfm2 without attention.head_count_kv of each layer"),
        ("lfm2", {"attention.head_count_kv": [2] * 5}, [], "no layer of Lfm2ForCausalLM with a state"),
        ("jamba", {"attention.head_count_kv": [2] * 4}, [], "no layer of JambaForCausalLM with a state"),
        ("mamba", {"ssm.state_size": 0}, [], "state_dim of states is 0"),
        ("mpt", {"attention.max_alibi_bias": 0.0}, [], "attn_config.alibi False, which is not supported"),
        ("mamba2", {"ssm.time_step_rank": 0}, [], "cannot be read"),
        ("llama", {}, ["blk.0.attn_sinks.weight"], "does not use here: blk.0.attn_sinks.weight"),
    ],
)
def test_variants_that_a_file_does_not_explain_are_refused_in_one_line(name, added, tensors, said, tmp_path, load):
    write_gguf(tmp_path / "m.gguf", name, save_family(tmp_path, name), added=added, added_tensors=tensors)

    with pytest.raises(ModelError, match=said) as caught:
        load(tmp_path / "m.gguf")

    assert "\n" not in caught.value.message


def test_rows_of_quantized_matrices_are_those_of_the_checkpoint(case):
    """Fused matrices and interleaved heads are taken apart without being dequantized."""
    name, directory, reference = case
    write_gguf(directory / "model.gguf", name, reference, gguf.GGMLQuantizationType.Q8_0)
    source = open_source(directory / "model.gguf")
    checked = 0
    for layer in range(2):
        for part in PARTS:
            key = f"model.layers.{layer}.{part}.weight"
            if not source.has(key):
                continue
            matrix, _ = source.load_quantized(key)
            values = gguf.quants.dequantize(matrix.rows, gguf.GGMLQuantizationType(matrix.kind))
            np.testing.assert_array_equal(values, source.load(key)[0])
            checked += 1

    assert checked >= 8
    assert torch.isfinite(source.load("model.norm.weight")[0]).all()
