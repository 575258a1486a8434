"""EXAONE 3, which transformers does not have: a Llama whose files have other names, and its config other keys."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.native.test_gguf import loaded

NAMES = {
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
    "model.layers": "transformer.h",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn": "attn.attention",
    "mlp.gate_proj": "mlp.c_fc_0",
    "mlp.up_proj": "mlp.c_fc_1",
    "mlp.down_proj": "mlp.c_proj",
}
KEYS = {
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 17, 90)]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def renamed(name: str, names: dict[str, str]) -> str:
    for ours, theirs in names.items():
        name = name.replace(ours, theirs)
    return name


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_tokens_are_those_of_a_llama_of_the_same_weights(kernels, tmp_path, make_driver):
    reference = save_family(tmp_path, "llama", rope_scaling=LLAMA3)
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    save_file({renamed(name, NAMES): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    values = {KEYS.get(key, key): value for key, value in config.items() if key not in ("model_type", "rope_parameters")}
    own = {"model_type": "exaone", "architectures": ["ExaoneForCausalLM"], "rope_theta": 10000.0, "rope_scaling": LLAMA3}
    (tmp_path / "config.json").write_text(json.dumps(values | own))
    driver = make_driver(loaded(tmp_path, kernels))
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)

    outputs = driver.generate(16)

    assert outputs == {handle: verified(reference, prompt, outputs[handle]) for handle, prompt in enumerate(PROMPTS)}
