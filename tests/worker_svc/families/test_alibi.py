"""BLOOM, MPT and Falcon with ALiBi: slopes, config values, equal bits alone and in a batch, and refused configs."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from tests.worker_svc.families.test_config_values import config_of
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.families.tiny_models import ABSENT, save_family
from tests.worker_svc.native.test_batches import bits_of, load_with
from tests.worker_svc.native.test_gguf import loaded
from tetrad.services.errors import FailedPrecondition, ModelError
from tetrad.worker_svc.attention.interface import AttentionShape
from tetrad.worker_svc.attention.packed import PackedAttention
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.families.alibi import slopes_of
from tetrad.worker_svc.families.registry import read_config

PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 17, 90)]
BLOOM_560M = {
    "architectures": ["BloomForCausalLM"],
    "apply_residual_connection_post_layernorm": False,
    "layer_norm_epsilon": 1e-5,
    "model_type": "bloom",
    "n_embed": 1024,
    "n_inner": None,
    "n_layer": 24,
    "num_attention_heads": 16,
    "offset_alibi": 100,
    "pretraining_tp": 1,
    "seq_length": 2048,
    "vocab_size": 250_880,
}
MPT_7B_STORYWRITER = {
    "architectures": ["MPTForCausalLM"],
    "attn_config": {
        "alibi": True,
        "alibi_bias_max": 16,
        "attn_impl": "torch",
        "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False,
        "clip_qkv": 6,
        "prefix_lm": False,
        "qk_ln": False,
        "softmax_scale": None,
    },
    "d_model": 4096,
    "expansion_ratio": 4,
    "learned_pos_emb": True,
    "logit_scale": None,
    "max_seq_len": 65_536,
    "model_type": "mpt",
    "n_heads": 32,
    "n_layers": 32,
    "no_bias": True,
    "norm_type": "low_precision_layernorm",
    "vocab_size": 50_432,
}
"""Values of published configs, which have older keys than those that transformers writes."""


def assert_tokens(model, make_driver, reference, prompts=PROMPTS):
    """Compare 16 tokens of each prompt, in chunks, with those of a model of transformers."""
    driver = make_driver(model)
    for handle, prompt in enumerate(prompts):
        driver.add(handle, prompt)

    outputs = driver.generate(16, chunk=40)

    assert outputs == {handle: verified(reference, prompt, outputs[handle]) for handle, prompt in enumerate(prompts)}


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 25, 32, 71, 112])
def test_slopes_are_those_of_transformers(num_heads):
    bloom = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0].diff()[:, 0]
    mpt = build_mpt_alibi_tensor(num_heads, 2)[:, 0].diff()[:, 0]

    slopes = torch.tensor(slopes_of(num_heads))

    torch.testing.assert_close(slopes, bloom, rtol=1e-6, atol=0)
    torch.testing.assert_close(slopes, mpt, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bias_max", [4, 16])
@pytest.mark.parametrize("num_heads", [4, 12])
def test_slopes_of_another_largest_bias_are_those_of_mpt(num_heads, bias_max):
    mpt = build_mpt_alibi_tensor(num_heads, 2, bias_max)[:, 0].diff()[:, 0]

    torch.testing.assert_close(torch.tensor(slopes_of(num_heads, bias_max)), mpt, rtol=1e-6, atol=0)


def test_slopes_of_falcon_are_scaled_as_products_are():
    config = read_config(config_of("falcon rw"))

    assert config.slopes == tuple(slope * 16**-0.5 for slope in slopes_of(4))


def test_the_keys_of_published_configs_are_read():
    bloom, mpt = read_config(BLOOM_560M), read_config(MPT_7B_STORYWRITER)

    assert (bloom.hidden_size, bloom.num_heads, bloom.num_layers, bloom.max_position_embeddings) == (1024, 16, 24, 2048)
    assert bloom.tie_word_embeddings and bloom.has_norm_of_embeddings and bloom.slopes == slopes_of(16)
    assert (mpt.hidden_size, mpt.num_heads, mpt.num_layers, mpt.max_position_embeddings) == (4096, 32, 32, 65_536)
    assert mpt.tie_word_embeddings and mpt.qkv_bound == 6 and mpt.slopes == slopes_of(32, 16)
    assert mpt.norm_eps == 1e-5 and mpt.layers[0].intermediate_size == 4 * 4096


def test_without_a_length_a_bloom_has_2048_positions():
    assert read_config(BLOOM_560M | {"seq_length": None}).max_position_embeddings == 2048


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        *(
            ("mpt", {"attn_config": {key: value}}, rf"attn_config\.{key} {value}, which is not supported")
            for key, value in {
                "alibi": False,
                "attn_type": "another",
                "prefix_lm": True,
                "qk_gn": True,
                "qk_ln": True,
                "rope": True,
                "sliding_window_size": 256,
            }.items()
        ),
        ("mpt", {"ffn_config": {"ffn_type": "mptglu"}}, r"ffn_config\.ffn_type mptglu, which is not supported"),
        ("mpt", {"ffn_config": {"ffn_act_fn": {"name": "silu"}}}, r"ffn_config\.ffn_act_fn .*silu.*, which is not supported"),
        ("mpt", {"ffn_config": {"ffn_act_fn": {"name": "gelu", "approximate": "tanh"}}}, r"ffn_config\.ffn_act_fn .*tanh"),
        ("mpt", {"block_overrides": {"order": [{"name": "default"}]}}, "block_overrides .*, which is not supported"),
        ("mpt", {"norm_type": "rmsnorm"}, "norm_type 'rmsnorm', which is not supported; supported: layernorm"),
        ("mpt", {"n_heads": 0}, "num_heads is 0, it must be 1 to 4096"),
        ("mpt", {"n_heads": 10**9}, "num_heads is 1000000000, it must be 1 to 4096"),
        ("falcon rw", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm True"),
        ("llama", {"alibi": True}, "alibi True, which is not supported"),
    ],
)
def test_values_that_change_results_and_are_not_read_are_refused(name, changes, message):
    config = config_of(name)
    changes = {key: config[key] | value if key == "attn_config" else value for key, value in changes.items()}

    with pytest.raises(ModelError, match=message):
        read_config(config | changes)


def test_a_largest_bias_of_mpt(tmp_path, load, make_driver):
    """transformers reads the value and does not use it; MosaicML's code and vLLM do."""
    reference = save_family(tmp_path, "mpt", attn_config={"alibi_bias_max": 3})
    biased = partial(build_mpt_alibi_tensor, alibi_bias_max=3)
    reference.transformer.build_mpt_alibi_tensor = lambda *sizes, device: biased(*sizes, device=device)

    assert_tokens(load(tmp_path), make_driver, reference)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_an_mpt_with_biases(kernels, tmp_path, make_driver):
    """transformers reads `no_bias` and does not use it; MosaicML's code and vLLM do."""
    reference = save_family(tmp_path, "mpt", no_bias=False)
    for name, module in reference.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm) and name != "lm_head":
            module.bias = torch.nn.Parameter(torch.randn(len(module.weight)) * 0.3)
    reference.save_pretrained(tmp_path)

    assert_tokens(loaded(tmp_path, kernels), make_driver, reference)


@pytest.mark.parametrize(
    ("kind", "num_kv_heads"), [({"attn_type": "multiquery_attention"}, 1), ({"attn_type": "grouped_query_attention"}, 2)]
)
def test_an_mpt_whose_heads_share_keys_and_values(kind, num_kv_heads, tmp_path, load, make_driver):
    """As one with a copy of the shared keys and values for each head; the files are MosaicML's."""
    reference, size = save_family(tmp_path, "mpt"), 16
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    for name, weight in tensors.items():
        if name.endswith("Wqkv.weight"):
            queries, *shared = weight.split([4 * size, 4 * size, 4 * size])
            shared = [part[: num_kv_heads * size] for part in shared]
            tensors[name] = torch.cat([queries, *shared])
            copied = [
                part.view(num_kv_heads, size, -1).repeat_interleave(4 // num_kv_heads, 0).flatten(0, 1) for part in shared
            ]
            reference.get_parameter(name).data = torch.cat([queries, *copied])
    save_file(tensors, tmp_path / "model.safetensors")
    config["attn_config"] |= kind | {"kv_n_heads": num_kv_heads}
    config["architectures"] = ["MPTForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert_tokens(load(tmp_path), make_driver, reference)


@pytest.mark.parametrize(("scale", "multiplier"), [(0.5, 0.5), ("inv_sqrt_d_model", 64**-0.5), (None, 1.0)])
def test_the_scale_of_logits_of_mpt(scale, multiplier):
    assert read_config(config_of("mpt", logit_scale=scale)).logit_multiplier == multiplier


def test_a_published_bloom_has_names_without_a_prefix(tmp_path, load, make_driver):
    reference = save_family(tmp_path, "bloom")
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(bare, tmp_path / "model.safetensors")

    assert_tokens(load(tmp_path), make_driver, reference)


def test_a_falcon_generates_what_transformers_own_code_does(tmp_path, load, make_driver):
    """transformers rounds Falcon's biases to bfloat16, which keeps those of 4 heads up to a distance of 256."""
    save_family(tmp_path, "falcon rw")
    own = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()

    assert_tokens(load(tmp_path), make_driver, own)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("name", ["bloom", "mpt with bounds", "falcon rw"])
def test_log_probabilities_are_those_of_transformers(name, kernels, tmp_path, make_driver):
    reference, prompt = save_family(tmp_path, name), PROMPTS[2]

    output, found = bits_of(loaded(tmp_path, kernels), make_driver, prompt, [], chunk=40)

    with torch.inference_mode():
        expected = reference(torch.tensor([prompt + output[:-1]])).logits[0].log_softmax(-1)
    chosen = torch.tensor(prompt[1:] + output)
    np.testing.assert_allclose(found, expected[torch.arange(len(chosen)), chosen], atol=2e-5)


@pytest.mark.parametrize("name", ["bloom with 12 heads", "mpt with bounds", "falcon 7b with biases of scores"])
@pytest.mark.parametrize("quantization", ["", "int8"])
def test_bits_alone_in_a_batch_and_in_chunks(name, quantization, tmp_path, make_driver):
    save_family(tmp_path, name)
    model = load_with(1, tmp_path, quantization=quantization)
    expected, bits = bits_of(model, make_driver, PROMPTS[2], [])

    for others, chunk in ((PROMPTS, 10_000), ([], 7), (PROMPTS, 13)):
        found, found_bits = bits_of(model, make_driver, PROMPTS[2], others, chunk=chunk)

        assert found == expected
        np.testing.assert_array_equal(found_bits, bits)


def test_no_context_is_longer_than_the_config_says(tmp_path, load):
    save_family(tmp_path, "mpt", max_seq_len=64)
    layout = KvLayout(num_blocks=32, block_size=16, max_model_len=65, max_num_seqs=4, max_num_batched_tokens=65)

    with pytest.raises(FailedPrecondition, match="max_model_len 65 exceeds the model's 64 positions"):
        load(tmp_path).make_runner(layout)


def test_linear_biases_do_not_reach_in_both_directions():
    attention = PackedAttention(num_heads=4, num_kv_heads=4, head_dim=16)

    with pytest.raises(ModelError, match=r"linear biases of scores \(ALiBi\) cannot see in both directions"):
        attention.layer(AttentionShape(0.25, slopes=torch.ones(4)))


@pytest.mark.parametrize("activation", [None, {"name": "gelu"}, {"name": "gelu", "approximate": "none"}])
def test_the_mlp_of_an_mpt_may_be_named(activation):
    given = {"ffn_config": {"ffn_type": "mptmlp", "ffn_act_fn": activation}, "block_overrides": None}

    assert read_config(config_of("mpt", **given)) == read_config(config_of("mpt"))


def test_values_that_a_config_omits_are_those_of_transformers():
    given, omitted = {"expansion_ratio": 4, "no_bias": True, "max_seq_len": 2048}, {"layer_norm_epsilon": ABSENT}
    bare = dict.fromkeys(given, ABSENT) | omitted | {"attn_config": ABSENT}

    assert read_config(config_of("mpt", **bare)) == read_config(config_of("mpt", **given))
