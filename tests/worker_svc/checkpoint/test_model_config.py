"""Configs and files that differ from a plain decoder: computed as transformers does, or refused by name."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker_svc.conftest import tiny_config
from tests.worker_svc.native.test_gguf import ALL_Q4_0, write
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.families.registry import read_config


@pytest.fixture
def altered(tmp_path, tiny_llama):
    """Copies the tiny llama with other values in its config."""

    def alter(**changes):
        copy = shutil.copytree(tiny_llama[0], tmp_path / "altered")
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(config | changes))
        return copy

    return alter


@pytest.mark.parametrize(
    ("architecture", "changes", "window"),
    [
        ("MistralForCausalLM", {"sliding_window": 24}, 24),
        ("LlamaForCausalLM", {"sliding_window": 24}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 24}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 24, "use_sliding_window": True}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 3}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 0}, 24),
        ("Qwen3ForCausalLM", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 0}, 24),
        ("Qwen2ForCausalLM", {"sliding_window": 24, "use_sliding_window": True, "layer_types": ["full_attention"] * 3}, None),
    ],
    ids=str,
)
def test_the_sliding_window_is_the_one_that_transformers_reads(architecture, changes, window):
    """The config of transformers says in layer_types which layers slide."""
    from transformers import AutoConfig

    config = tiny_config(architecture, **changes)
    theirs = AutoConfig.for_model(**{key: value for key, value in config.items() if key != "architectures"})
    kinds = set(getattr(theirs, "layer_types", None) or ())

    assert read_config(config).windows == (window,)
    assert kinds <= ({"full_attention"} if window is None else {"sliding_attention"})


def test_windows_may_differ_between_layers():
    config = tiny_config("Qwen2ForCausalLM", sliding_window=24, use_sliding_window=True, max_window_layers=2)

    assert [layer.window for layer in read_config(config).layers] == [None, None, 24]


def test_layers_of_an_unknown_kind_are_refused():
    config = tiny_config("Qwen2ForCausalLM", use_sliding_window=True, layer_types=["full_attention", "linear_attention"] * 2)

    with pytest.raises(ModelError, match="layer_types for 4 of 3 layers: linear_attention; supported: full_attention, sliding"):
        read_config(config)


def test_a_window_in_a_gguf_file_is_that_of_all_layers(tmp_path):
    path = write(tmp_path / "m.gguf", 256, 512, ALL_Q4_0, sliding_window=24)

    assert read_config(read_model_config(path)).windows == (24,)


@pytest.mark.parametrize(
    "changes",
    [
        {"final_logit_softcapping": 30.0},
        {"residual_multiplier": 0.22},
        {"no_rope_layers": [1, 1, 0]},
        {"num_local_experts": 8},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}},
    ],
    ids=str,
)
def test_a_key_that_nothing_computes_is_refused_by_name(changes):
    [key] = changes
    named = "llama_4_scaling_beta" if key == "rope_parameters" else key

    with pytest.raises(ModelError, match=f"The model's config has {named} .* which is not supported"):
        read_config(tiny_config("LlamaForCausalLM", **changes))


@pytest.mark.parametrize(
    "changes", [{"residual_multiplier": 1.0}, {"final_logit_softcapping": None}, {"no_rope_layers": [1, 1, 1]}], ids=str
)
def test_a_key_with_its_neutral_value_is_no_reason(changes):
    read_config(tiny_config("LlamaForCausalLM", **changes))


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.1.self_attn.sinks"])
def test_a_tensor_that_nothing_reads_is_refused_by_name(name, altered, load):
    directory = altered()
    tensors = load_file(directory / "model.safetensors")
    save_file(tensors | {name: tensors["model.norm.weight"].clone()}, directory / "model.safetensors", {"format": "pt"})

    with pytest.raises(ModelError, match=f"tensors that LlamaForCausalLM does not use here: {name}"):
        load(directory)


def test_a_quantization_that_is_not_known_is_refused_with_the_known_ones(altered, load):
    with pytest.raises(ModelError, match=r"quantized as 'aqlm', which is not supported; supported: awq, "):
        load(altered(quantization_config={"quant_method": "aqlm"}))


def test_packed_weights_without_a_quantization_config_are_named(altered, load):
    """As older tools wrote them: what they say of the quantization is in a file of its own."""
    directory = altered()
    tensors = load_file(directory / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    packed = tensors.pop(f"{name}.weight").to(torch.int32)
    save_file(tensors | {f"{name}.qweight": packed}, directory / "model.safetensors", {"format": "pt"})

    with pytest.raises(ModelError, match=f"have {name}.qweight: it is quantized as AWQ or GPTQ, which needs a quantization"):
        load(directory)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8"])
def test_a_method_of_quantized_checkpoints_is_none_for_floats(method, altered, load):
    with pytest.raises(ModelError, match=f"Quantization '{method}' is not supported for .*; supported: int8"):
        load(altered(), quantization=method)


def test_a_modelopt_checkpoint_may_have_its_quantization_in_a_file_of_its_own(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    described = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(described))

    config = read_model_config(tmp_path)

    assert config["quantization_config"] == {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}


def test_a_modelopt_checkpoint_with_a_quantized_cache_alone_has_weights_in_floats(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    described = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(described))

    assert "quantization_config" not in read_model_config(tmp_path)


def test_overrides_replace_the_values_of_an_inner_config_one_by_one_and_other_objects_whole():
    config = {"attn_config": {"alibi": True, "clip_qkv": 6}, "rope_scaling": {"factor": 2.0, "rope_type": "linear"}}
    overrides = {"attn_config": {"alibi_bias_max": 16}, "rope_scaling": {"factor": 4.0}, "text_config": {"n_layers": 1}}

    found = apply_overrides(config | {"quantization_config": {"bits": 4}}, json.dumps(overrides | {"quantization_config": {}}))

    assert found == overrides | {
        "attn_config": {"alibi": True, "clip_qkv": 6, "alibi_bias_max": 16},
        "quantization_config": {},
    }
