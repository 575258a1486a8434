"""Values of a config.json that files seldom have or omit: a description has the same ones as transformers."""

import math
import re
from copy import deepcopy

import pytest
import torch
from transformers import AutoConfig

from tests.worker_svc.families.tiny_models import ABSENT, FAMILIES, SIZES
from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.registry import read_config
from tetrad.worker_svc.layers.rotary import rotary_of

ORIGINAL = "original_max_position_embeddings"


def config_of(name, **changes):
    """Return the config.json of a tiny model, as transformers writes it, with changes."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_type, own = FAMILIES[name]
    sizes = {key: value for key, value in (SIZES | own).items() if value is not ABSENT}
    config = AutoConfig.for_model(model_type, **sizes).to_dict()
    config |= {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]], **changes}
    return {key: value for key, value in config.items() if value is not ABSENT}


def as_read(config):
    """Return a config.json with every value that transformers assumes."""
    kind = type(AutoConfig.for_model(config["model_type"]))
    return kind.from_dict(deepcopy(config)).to_dict() | {"architectures": config["architectures"]}


def rotations(config):
    """Return the frequencies and the gain of each rotary embedding."""
    rotaries = [rotary_of(rope.dim, rope.theta, rope.scaling) for rope in config.ropes]
    return [(rotary.frequencies.tolist(), rotary.gain) for rotary in rotaries]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("cohere", "logit_scale"),
        ("cohere2", "logit_scale"),
        ("deepseek_v3", "routed_scaling_factor"),
        ("ernie", "head_dim"),
        ("glm4_moe_lite", "mlp_layer_types"),
        ("glm4_moe_lite", "routed_scaling_factor"),
        ("gemma2", "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping"),
        *((name, "sliding_window") for name in ("mistral", "ministral", "mixtral", "qwen2", "gpt_oss", "olmo3", "exaone4")),
        *((name, "sliding_window") for name in ("cohere2", "gemma2", "gemma3", "phi3", "starcoder2", "ministral3")),
        *(("mamba", key) for key in ("state_size", "conv_kernel", "expand", "time_step_rank", "layer_norm_epsilon")),
        *(("mamba", key) for key in ("intermediate_size", "use_bias", "use_conv_bias", "tie_word_embeddings")),
        ("falcon_mamba", "mixer_rms_eps"),
        *(("jamba", f"mamba_{key}") for key in ("d_state", "d_conv", "expand", "dt_rank", "conv_bias", "proj_bias")),
        *(("jamba", key) for key in ("expert_layer_period", "expert_layer_offset", "attn_layer_period")),
        *(("jamba", key) for key in ("num_experts", "num_experts_per_tok", "max_position_embeddings")),
    ],
)
def test_a_value_that_the_config_omits_is_that_of_transformers(name, key):
    config = config_of(name, **{key: ABSENT})

    assert read_config(config) == read_config(as_read(config))


@pytest.mark.parametrize("name", ["cohere", "falcon_h1", "ernie", "llama4", "mixtral", "olmo3", "smollm3"])
def test_the_base_of_a_rotary_embedding_that_the_config_omits_is_that_of_transformers(name):
    config = config_of(name, rope_parameters=ABSENT)

    assert read_config(config).ropes == read_config(as_read(config)).ropes


@pytest.mark.parametrize("name", ["gpt_oss", "ministral3"])
@pytest.mark.parametrize("given", [{}, {"rope_theta": 5e5}, {"rope_scaling": None}, {"rope_parameters": {}}])
def test_the_scaling_of_a_rotary_embedding_that_the_config_omits_is_that_of_transformers(name, given):
    config = config_of(name, **{"rope_parameters": ABSENT, **given})

    ours, theirs = read_config(config), read_config(as_read(config))

    assert rotations(ours) == rotations(theirs)
    assert [layer.query_scaling for layer in ours.layers] == [layer.query_scaling for layer in theirs.layers]


def test_a_gpt_oss_with_another_activation_is_refused():
    assert read_config(config_of("gpt_oss", swiglu_alpha=1.702))
    with pytest.raises(ModelError, match=r"swiglu_alpha 1\.5, which is not supported"):
        read_config(config_of("gpt_oss", swiglu_alpha=1.5))


@pytest.mark.parametrize(
    ("name", "own", "other"),
    [("deepseek_v2", "softmax", "sigmoid"), ("deepseek_v3", "sigmoid", "softmax"), ("glm4_moe", "sigmoid", "softmax")],
)
def test_routers_with_another_scoring_function_are_refused(name, own, other):
    assert read_config(config_of(name, scoring_func=own)) == read_config(config_of(name))
    with pytest.raises(ModelError, match=f"scoring_func '{other}', which is not supported; supported: {own}"):
        read_config(config_of(name, scoring_func=other))


def test_the_kinds_of_a_gpt_neo_are_repeated_for_its_layers_only():
    """A file of a hundred bytes would name more layers than fit into memory."""
    config = config_of("gpt_neo", attention_types=[[["global", "local"], 10**12]], attention_layers=ABSENT)

    assert read_config(config) == read_config(config_of("gpt_neo"))


@pytest.mark.parametrize(("name", "key"), [("mistral", "sliding_window"), ("gpt_neo", "window_size")])
def test_a_window_below_1_is_refused(name, key):
    """Its tokens would attend to no key at all."""
    with pytest.raises(ModelError, match="impossible: a window of -1 tokens; it must be at least 1, or null for no window"):
        read_config(config_of(name, **{key: -1}))


@pytest.mark.parametrize("number", [-1, 10**12, [], "", "two"])
def test_an_impossible_number_of_mtp_layers_is_refused(number):
    said = re.escape(str(number) or repr(number))
    with pytest.raises(ModelError, match=f"num_nextn_predict_layers is {said}, it must be 0 to 1024"):
        read_config(config_of("glm4_moe_lite", num_nextn_predict_layers=number))


@pytest.mark.parametrize("number", [0, [], "two"])
def test_an_impossible_number_of_layers_is_refused(number):
    with pytest.raises(ModelError, match=rf"num_layers is {re.escape(str(number))}, it must be 1 to 1024"):
        read_config(config_of("llama", num_hidden_layers=number))


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("llama", "rms_norm_eps", math.nan, "rms_norm_eps is nan, it must be a finite number"),
        ("llama", "rms_norm_eps", -1e-6, "rms_norm_eps is -1e-06, it must be 0 or above"),
        ("mpt", "layer_norm_epsilon", math.inf, "layer_norm_epsilon is inf, it must be a finite number"),
        ("mpt", "attn_config", {"clip_qkv": -8.0}, "clip_qkv is -8.0, it must be 0 or above"),
        ("mpt", "attn_config", {"clip_qkv": math.nan}, "clip_qkv is nan, it must be a finite number"),
        ("gemma2", "attn_logit_softcapping", -50.0, "attn_logit_softcapping is -50.0, it must be 0 or above"),
        ("gemma2", "query_pre_attn_scalar", 0, "query_pre_attn_scalar is 0, it must be above 0"),
        ("granite", "residual_multiplier", -math.inf, "residual_multiplier is -inf, it must be a finite number"),
        ("llama", "rope_parameters", {"rope_theta": -1e4}, "rope_theta is -10000.0, it must be above 0"),
        ("llama", "hidden_size", math.nan, "hidden_size is nan, it must be a finite number"),
        ("mamba2", "time_step_limit", [0.0, math.nan], "time_step_limit is nan, it must be numbers"),
        ("falcon_mamba", "mixer_rms_eps", math.nan, "mixer_rms_eps is nan, it must be a finite number"),
    ],
)
def test_a_number_that_no_model_can_have_is_refused_by_its_name(name, key, value, words):
    """Every token would be NaN, or a wrong one."""
    with pytest.raises(ModelError, match=f"^The model's config is impossible: {words}.$"):
        read_config(config_of(name, **{key: value}))


def test_windows_of_a_smollm3_are_in_layers_without_rotary_embeddings():
    config = config_of("smollm3", layer_types=ABSENT, use_sliding_window=True, sliding_window=24)

    assert read_config(config).layer_windows == (None, None, None, 24, None)
    assert read_config(config) == read_config(as_read(config))


LONGROPE = FAMILIES["phi3 with long contexts"][1]["rope_scaling"]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"rope_scaling": LLAMA3}),
        ("llama", {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 256, "rope_theta": 5e5}}),
        ("phi3 with long contexts", {"rope_scaling": LONGROPE | {ORIGINAL: 8}}),
        *(
            (
                "phi3 with long contexts",
                {"rope_scaling": LONGROPE | scaling, "max_position_embeddings": longest, ORIGINAL: ABSENT},
            )
            for scaling in ({}, {ORIGINAL: 2048}, {ORIGINAL: 2048, "rope_type": "su"}, {"rope_type": "yarn"})
            for longest in (4096, 8192)
        ),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 512}, ORIGINAL: 256}),
    ],
)
def test_a_scaled_rotary_embedding_is_that_of_transformers(name, changes):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = config_of(name, rope_parameters=ABSENT, **changes)
    kind = type(AutoConfig.for_model(config["model_type"]))
    theirs = kind.from_dict(deepcopy(config))
    length = theirs.max_position_embeddings
    frequencies, gain = ROPE_INIT_FUNCTIONS[theirs.rope_parameters["rope_type"]](theirs, "cpu", seq_len=length)

    [rope] = read_config(config).ropes
    rotary = rotary_of(rope.dim, rope.theta, rope.scaling)

    torch.testing.assert_close(rotary.frequencies, frequencies)
    assert rotary.gain == pytest.approx(gain)


@pytest.mark.parametrize(
    ("architecture", "model_type", "given"),
    [
        (
            "LlavaForConditionalGeneration",
            "llama",
            {"vocab_size": 32_064, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
        ),
        ("Mistral3ForConditionalGeneration", "mistral", {"vocab_size": 32_064}),
        (
            "LlavaOnevisionForConditionalGeneration",
            "qwen2",
            {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "rope_theta": 1e6},
        ),
    ],
)
def test_a_text_config_omits_the_sizes_that_transformers_assumes(architecture, model_type, given):
    """transformers writes only the values of a text_config that differ from its defaults, as in LLaVA 1.5's files."""
    whole = AutoConfig.for_model(model_type, **given).to_dict()
    del whole["tie_word_embeddings"]  # else the wrapper's default holds
    configs = [{"architectures": [architecture], "text_config": {"model_type": model_type, **text}} for text in (given, whole)]

    omitting, complete = map(read_config, configs)

    assert omitting == complete


def test_null_is_a_value():
    config = read_config(config_of("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None))

    assert config.attention_softcap == config.logit_softcap == 0
    assert read_config(config_of("mistral", sliding_window=None)).windows == (None,)


def test_a_nemotron_h_has_its_own_output_layer_whatever_its_config_says():
    """As in transformers, whose model ties no weights and whose files have both matrices."""
    assert not read_config(config_of("nemotron_h", tie_word_embeddings=True)).tie_word_embeddings


def test_the_time_steps_of_a_mamba_have_a_rank_of_a_sixteenth_of_its_size_if_its_config_says_auto():
    for name, key in (("mamba", "time_step_rank"), ("jamba", "mamba_dt_rank")):
        [state, *_] = [
            layer.state for layer in read_config(config_of(name, hidden_size=72, **{key: "auto"})).layers if layer.state
        ]

        assert state.step_rank == 5


def test_attention_and_experts_of_a_jamba_come_once_in_a_period():
    layers = read_config(config_of("jamba", num_hidden_layers=7)).layers

    assert [layer.has_attention for layer in layers] == [index in (1, 4) for index in range(7)]
    assert [layer.experts is not None for layer in layers] == [index in (1, 3, 5) for index in range(7)]
    assert not any(layer.rope for layer in layers)


@pytest.mark.parametrize(
    ("given", "activation"),
    [
        ({"hidden_act": ABSENT}, "gelu_tanh"),
        ({"hidden_act": "gelu"}, "gelu_tanh"),
        ({"hidden_act": "gelu", "hidden_activation": None}, "gelu_tanh"),
        ({"hidden_act": "silu"}, "silu"),
    ],
    ids=["no", "gelu", "both", "silu"],
)
def test_gelu_in_the_config_of_a_gemma_1_is_its_approximation(given, activation):
    """The first files of Gemma name it so; other functions are what their names say."""
    assert read_config(config_of("gemma", **given)).activation == activation


def test_a_gpt2_whose_attention_is_not_scaled():
    assert read_config(config_of("gpt2", scale_attn_weights=False)).attention_scale == 1
    assert read_config(config_of("gpt2", scale_attn_weights=True)).attention_scale == 0.25
