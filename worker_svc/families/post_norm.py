"""Models with norms behind attention and MLP, and none before: OLMo 2 and 3, EXAONE 4."""

from dataclasses import replace
from typing import Any

from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.values import FULL, SLIDING, Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_EVERY_FOURTH = 4


def olmo2(values: Values) -> ModelConfig:
    """OLMo 2: queries and keys are normed over all their heads."""
    return _post_norm(values, head_norms="whole")


def olmo3(values: Values) -> ModelConfig:
    """OLMo 3: every fourth layer sees all keys; it alone has the scaling of the rotary embedding."""
    config = _post_norm(values, kinds=_kinds(values, _EVERY_FOURTH), head_norms="whole")
    if values.get("rope_parameters"):
        return config
    layers = [
        replace(layer, rope=replace(layer.rope, scaling=None)) if layer.window and layer.rope else layer
        for layer in config.layers
    ]
    return replace(config, layers=tuple(layers))


def exaone4(values: Values) -> ModelConfig:
    """EXAONE 4: norms of heads; where layers have windows, those without one do not turn."""
    if not values.get("sliding_window"):
        return _post_norm(values, kinds=[FULL] * values.num_layers(), head_norms="head")
    pattern = values.get("sliding_window_pattern", default=_EVERY_FOURTH)
    interval = len(pattern) if isinstance(pattern, str) else int(pattern)
    return _post_norm(values, kinds=_kinds(values, interval), rope_kinds=(SLIDING,), head_norms="head")


def _kinds(values: Values, interval: int) -> list[str]:
    """Return a full layer at each interval, and sliding ones between."""
    return values.layer_kinds([SLIDING if (index + 1) % interval else FULL for index in range(values.num_layers())])


def _post_norm(values: Values, **changes: Any) -> ModelConfig:
    names = {
        "self_attn.output_norm": Stored("post_attention_layernorm"),
        "mlp.output_norm": Stored("post_feedforward_layernorm"),
    }
    return decoder(values, has_norms_before=False, has_norms_after=True, tensors=TensorNames(in_layer=names), **changes)
