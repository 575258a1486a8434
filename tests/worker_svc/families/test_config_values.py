"""Values of a config.json that files seldom have or omit: a description has the same ones as transformers."""

from tests.worker_svc.families.tiny_models import ABSENT, FAMILIES, SIZES
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


def test_a_gpt2_whose_attention_is_not_scaled():
    assert read_config(config_of("gpt2", scale_attn_weights=False)).attention_scale == 1
    assert read_config(config_of("gpt2", scale_attn_weights=True)).attention_scale == 0.25
