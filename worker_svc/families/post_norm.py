"""Models with norms only after attention and MLP: OLMo 2 and 3, EXAONE 4."""

from dataclasses import replace
from typing import Any

from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.values import FULL, SLIDING, WINDOW, Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_EVERY_FOURTH = 4


def olmo2(values: Values) -> ModelConfig:
    """Describe OLMo 2: norms of queries and keys over all heads together."""
    return _post_norm(values, head_norms="whole")


def olmo3(values: Values) -> ModelConfig:
    """Describe OLMo 3: full attention in every fourth layer; only these layers scale the rotary embedding."""
    config = _post_norm(
        values, kinds=_kinds(values, _EVERY_FOURTH), default_window=WINDOW, rope={"theta": 5e5}, head_norms="whole"
    )
    if values.get("rope_parameters"):
        return config
    layers = [
        replace(layer, rope=replace(layer.rope, scaling=None)) if layer.window and layer.rope else layer
        for layer in config.layers
    ]
    return replace(config, layers=tuple(layers))


def exaone4(values: Values) -> ModelConfig:
    """Describe EXAONE 4: norms of each head; in models with windows, full layers have no rotary embeddings."""
    if not values.if_absent("sliding_window", WINDOW):
        return _post_norm(values, kinds=[FULL] * values.num_layers(), head_norms="head")
    pattern = values.get("sliding_window_pattern", default=_EVERY_FOURTH)
    interval = len(pattern) if isinstance(pattern, str) else int(pattern)
    return _post_norm(values, kinds=_kinds(values, interval), default_window=WINDOW, rope_kinds=(SLIDING,), head_norms="head")


def _kinds(values: Values, interval: int) -> list[str]:
    """Return the layers' kinds: every `interval`-th layer has full attention, the others a sliding window."""
    return values.layer_kinds([SLIDING if (index + 1) % interval else FULL for index in range(values.num_layers())])


def _post_norm(values: Values, **changes: Any) -> ModelConfig:
    names = {
        "self_attn.output_norm": Stored("post_attention_layernorm"),
        "mlp.output_norm": Stored("post_feedforward_layernorm"),
    }
    return decoder(values, has_norms_before=False, has_norms_after=True, tensors=TensorNames(in_layer=names), **changes)
