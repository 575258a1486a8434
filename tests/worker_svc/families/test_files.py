"""Files of every family: made-up weights have the shapes that programs expect; wrong files are refused in one line."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.families.tiny_models import ABSENT, FAMILIES, save_family
from tetrad.services.errors import ModelError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saves each family once; returns (directory, transformers' model)."""
    models = {}

    def get(name):
        if name not in models:
            directory = tmp_path_factory.mktemp(name.replace(" ", "-"))
            models[name] = directory, save_family(directory, name)
        return models[name]

    return get


@pytest.mark.parametrize("name", FAMILIES)
def test_made_up_weights_have_every_tensor_of_the_real_ones(name, saved, load):
    directory, reference = saved(name)

    made_up = load(directory, random_weights=True)

    assert made_up.info.num_parameters == sum(each.numel() for each in reference.parameters()) + num_buffers(reference)


_BUFFERS = ("e_score_correction_bias", "expert_bias")


def num_buffers(reference) -> int:
    """Numbers of the checkpoint that transformers trains otherwise than by gradients."""
    return sum(each.numel() for name, each in reference.named_buffers() if name.endswith(_BUFFERS))


@pytest.fixture
def altered(saved, tmp_path):
    """Copies a family's files with other tensors and values of the config."""

    def alter(name, tensors=None, **config):
        directory = shutil.copytree(saved(name)[0], tmp_path / "altered")
        if tensors is not None:
            save_file(tensors(load_file(directory / "model.safetensors")), directory / "model.safetensors", {"format": "pt"})
        values = json.loads((directory / "config.json").read_text()) | config
        values = {key: value for key, value in values.items() if value is not ABSENT}
        (directory / "config.json").write_text(json.dumps(values))
        return directory

    return alter


def with_tensor(name, change):
    return lambda tensors: tensors | {name: change(tensors[name]).contiguous() if change else torch.zeros(4)}


def without_tensor(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def check_tokens(load, directory, reference, prompt=range(3, 43)):
    driver = Driver(load(directory).make_runner(LAYOUT))
    driver.add(0, list(prompt))
    output = driver.generate(12)[0][:12]
    assert output == verified(reference, list(prompt), output)


@pytest.mark.parametrize("factor", [1, -1])
def test_an_output_layer_beside_tied_embeddings_is_used_if_it_is_another(factor, altered, load):
    """As by transformers. One line of the log says so."""
    from transformers import AutoModelForCausalLM

    def with_output(tensors):
        return tensors | {"lm_head.weight": factor * tensors["model.embed_tokens.weight"]}

    directory = altered("smollm3", with_output, tie_word_embeddings=True)

    with capture_logs() as lines:
        check_tokens(load, directory, AutoModelForCausalLM.from_pretrained(directory))

    assert [line["log_level"] for line in lines if line["event"] == "output_layer.not_tied"] == ["warning"] * (factor == -1)


def test_a_phi3_is_scaled_from_4096_tokens_if_its_config_does_not_say(altered, load):
    """Of the value in the scaling, transformers makes no use."""
    from transformers import AutoModelForCausalLM

    scaling = FAMILIES["phi3 with long contexts"][1]["rope_scaling"] | {"original_max_position_embeddings": 2}
    directory = altered(
        "phi3 with long contexts",
        original_max_position_embeddings=ABSENT,
        max_position_embeddings=4096,
        rope_parameters=ABSENT,
        rope_scaling=scaling,
    )

    check_tokens(load, directory, AutoModelForCausalLM.from_pretrained(directory))


@pytest.mark.parametrize(
    ("name", "tensors", "config", "reason"),
    [
        ("phi3", with_tensor("model.layers.0.self_attn.qkv_proj.weight", lambda t: t.repeat(2, 1)), {}, "has 256 rows"),
        ("gpt_neox", None, {"head_dim": 32}, "query_key_value.weight has 192 rows, but the config asks for 384"),
        ("gpt2", without_tensor("transformer.h.1.attn.c_proj.bias"), {}, "no tensor model.layers.1.self_attn.o_proj.bias"),
        ("gpt2", without_tensor("transformer.wpe.weight"), {}, "no tensor model.embed_positions.weight"),
        ("gemma2", without_tensor("model.layers.1.pre_feedforward_layernorm.weight"), {}, "post_attention_layernorm.weight"),
        ("gpt_oss", with_tensor("model.layers.0.mlp.experts.gate_up_proj", lambda t: t[:3]), {}, "has 3 experts"),
        ("gpt_oss", without_tensor("model.layers.0.self_attn.sinks"), {}, "no tensor model.layers.0.self_attn.sinks"),
        ("mixtral", without_tensor("model.layers.2.block_sparse_moe.experts.3.w2.weight"), {}, "experts.3.down_proj.weight"),
        ("mixtral", None, {"num_local_experts": 3}, r"model.layers.0.mlp.router.weight has shape \(4, 64\)"),
        ("llama", with_tensor("model.layers.0.self_attn.sinks", None), {}, "does not use here: model.layers.0.self_attn.sinks"),
        ("mixtral", None, {"num_experts_per_tok": 5}, "num_experts_per_tok is 5, it must be 1 to 4"),
        ("qwen3_moe", None, {"num_experts": 10**9}, "num_experts is 1000000000, it must be 1 to 4096"),
        ("glm4_moe", None, {"n_group": 3}, "n_group"),
        ("deepseek_v3", None, {"kv_lora_rank": 0}, "rank of latent attention is 0"),
        ("granite", None, {"logits_scaling": 0}, "cannot be read"),
        ("cohere", None, {"hidden_act": "tanh"}, "hidden_act 'tanh', which is not supported"),
        ("llama", None, {"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0, which is not supported"),
        ("smollm3", None, {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("jamba", without_tensor("model.layers.2.mamba.b_layernorm.weight"), {}, "no tensor model.layers.2.mixer.b_layernorm"),
        ("jamba", None, {"expert_layer_offset": 0}, "feed_forward.* not use here|no tensor model.layers.0.mlp.router"),
        ("jamba", None, {"attn_layer_period": 0}, "cannot be read"),
        *((name, None, {"rope_scaling": "linear"}, "cannot be read") for name in ("bloom", "falcon rw", "mamba", "jamba")),
        ("jamba", None, {"num_experts_per_tok": 5}, "num_experts_per_tok is 5, it must be 1 to 4"),
        ("mamba", without_tensor("backbone.layers.1.mixer.dt_proj.bias"), {}, "no tensor model.layers.1.mixer.dt_bias"),
        ("mamba", with_tensor("backbone.layers.0.mixer.x_proj.bias", None), {}, "x_proj.bias"),
        ("mamba", None, {"time_step_rank": 9}, r"x_proj.weight has shape \(20, 128\)"),
        ("mamba", None, {"intermediate_size": 0, "expand": 0}, "intermediate_size of states is 0"),
        ("mamba", None, {"hidden_act": "gelu"}, "hidden_act 'gelu', which is not supported"),
        ("mamba2", without_tensor("backbone.layers.1.mixer.A_log"), {}, "no tensor model.layers.1.mixer.A_log"),
        ("mamba2", with_tensor("backbone.layers.0.mixer.conv1d.weight", lambda t: t[:, :, :3]), {}, "conv.weight has shape"),
        ("mamba2", None, {"n_groups": 3}, "8 state heads cannot form 3 equal groups"),
        ("mamba2", None, {"conv_kernel": 1}, "a convolution of 1 tokens"),
        ("mamba2", None, {"hidden_act": "gelu"}, "hidden_act 'gelu', which is not supported"),
        ("lfm2", None, {"layer_types": ["conv", "recurrent", "conv"]}, "layer_types for 3 of 5 layers: recurrent"),
        ("granite_hybrid", None, {"mamba_d_head": 17}, "8 heads of 17 make no state layer of 128"),
        ("falcon_h1", None, {"ssm_multipliers": [1.0]}, "cannot be read"),
        ("qwen3_next", None, {"linear_num_value_heads": 3}, "3 value heads cannot share 2 key heads equally"),
    ],
)  # fmt: skip
def test_files_that_lie_are_refused_in_one_line(name, tensors, config, reason, altered, load):
    directory = altered(name, tensors or None, **config)

    with pytest.raises(ModelError, match=reason) as caught:
        load(directory)

    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500
