"""Values of a config.json that files seldom have or omit: a description has the same ones as transformers."""

import pytest

from tests.worker_svc.families.tiny_models import ABSENT, FAMILIES, SIZES
from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.registry import read_config


def config_of(name, **changes):
    """Return the config.json of a tiny model, as transformers writes it, with changes."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_type, own = FAMILIES[name]
    sizes = {key: value for key, value in (SIZES | own).items() if value is not ABSENT}
    config = AutoConfig.for_model(model_type, **sizes).to_dict()
    config |= {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]], **changes}
    return {key: value for key, value in config.items() if value is not ABSENT}


def as_read(config):
    """Return a config.json with every value that transformers assumes."""
    from transformers import AutoConfig

    kind = type(AutoConfig.for_model(config["model_type"]))
    return kind.from_dict(dict(config)).to_dict() | {"architectures": config["architectures"]}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("cohere", "logit_scale"),
        ("cohere2", "logit_scale"),
        ("gemma2", "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping"),
        *((name, "sliding_window") for name in ("mistral", "ministral", "mixtral", "qwen2", "gpt_oss", "olmo3", "exaone4")),
        *((name, "sliding_window") for name in ("cohere2", "gemma2", "gemma3", "phi3", "starcoder2", "ministral3")),
    ],
)
def test_a_value_that_the_config_omits_is_that_of_transformers(name, key):
    config = config_of(name, **{key: ABSENT})

    assert read_config(config) == read_config(as_read(config))


@pytest.mark.parametrize("name", ["cohere", "llama4", "mixtral", "olmo3", "smollm3"])
def test_the_base_of_a_rotary_embedding_that_the_config_omits_is_that_of_transformers(name):
    config = config_of(name, rope_parameters=ABSENT)

    assert read_config(config).ropes == read_config(as_read(config)).ropes


def test_a_gpt_oss_with_another_activation_is_refused():
    assert read_config(config_of("gpt_oss", swiglu_alpha=1.702))
    with pytest.raises(ModelError, match="swiglu_alpha 1[.]5, which is not supported"):
        read_config(config_of("gpt_oss", swiglu_alpha=1.5))


def test_windows_of_a_smollm3_are_in_layers_without_rotary_embeddings():
    config = config_of("smollm3", layer_types=ABSENT, use_sliding_window=True, sliding_window=24)

    assert read_config(config).layer_windows == (None, None, None, 24, None)
    assert read_config(config) == read_config(as_read(config))


def test_null_is_a_value():
    config = read_config(config_of("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None))

    assert config.attention_softcap == config.logit_softcap == 0
    assert read_config(config_of("mistral", sliding_window=None)).windows == (None,)


def test_a_gpt2_whose_attention_is_not_scaled():
    assert read_config(config_of("gpt2", scale_attn_weights=False)).attention_scale == 1
    assert read_config(config_of("gpt2", scale_attn_weights=True)).attention_scale == 0.25
