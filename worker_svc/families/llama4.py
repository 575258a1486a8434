"""Llama 4 (text): chunked attention in layers with rotary embeddings, normalised heads, one routed and one shared expert."""

from dataclasses import replace

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.values import FULL, Values
from tetrad.worker_svc.model_facts.config import Experts, LayerConfig, ModelConfig, QueryScaling
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored, TensorNames

_NO_ROPE_INTERVAL = 4
_CHUNK = 8192
_SCALING = (0.1, 8192)


def llama4(values: Values) -> ModelConfig:
    """Describe Llama 4: every fourth layer has full attention, no rotary embeddings, and queries scaled by their position."""
    config = decoder(
        values,
        kinds=[FULL] * values.num_layers(),
        rope={"theta": 5e5},
        head_norms="unit" if values.get("use_qk_norm", default=True) else "none",
        are_heads_normed_last=True,
    )
    size = config.layers[0].intermediate_size
    step = int(values.get("interleave_moe_layer_step", default=1))
    mixed = set(values.get("moe_layers", default=range(step - 1, config.num_layers, step)))
    layers = tuple(
        replace(
            _turning(values, layer) if turns else _seeing_all(values, layer),
            intermediate_size=int(values.need("intermediate_size_mlp")),
            experts=_experts(values, size) if index in mixed else None,
        )
        for index, (layer, turns) in enumerate(zip(config.layers, _turns(values, config.num_layers), strict=True))
    )
    return replace(config, layers=layers, tensors=TensorNames(in_layer=_names(config.head_dim, size)))


def _turns(values: Values, num_layers: int) -> list[bool]:
    interval = int(values.get("no_rope_layer_interval", default=_NO_ROPE_INTERVAL))
    turns = values.get("no_rope_layers") or [(index + 1) % interval != 0 for index in range(num_layers)]
    if len(turns) != num_layers:
        raise ModelError(f"The model's config has no_rope_layers for {len(turns)} of {num_layers} layers.")
    return [bool(turn) for turn in turns]


def _turning(values: Values, layer: LayerConfig) -> LayerConfig:
    return replace(layer, chunk=int(values.get("attention_chunk_size", default=_CHUNK)))


def _seeing_all(values: Values, layer: LayerConfig) -> LayerConfig:
    if not values.get("attn_temperature_tuning", default=True):
        return replace(layer, rope=None)
    beta, period = (
        float(values.get(key, default=value)) for key, value in zip(("attn_scale", "floor_scale"), _SCALING, strict=True)
    )
    return replace(layer, rope=None, query_scaling=QueryScaling(beta, period, offset=1))


def _experts(values: Values, size: int) -> Experts:
    return Experts(
        num_experts=int(values.need("num_local_experts")),
        num_chosen=int(values.get("num_experts_per_tok", default=1)),
        intermediate_size=size,
        router="sigmoid_input",
        is_renormalized=False,
        shared_size=size,
    )


def _names(dim: int, size: int) -> dict[str, Stored]:
    names = {f"self_attn.{part}_proj": Stored(f"self_attn.{part}_proj", paired=(dim, dim)) for part in "qk"}
    names["mlp.router"] = Stored("feed_forward.router")
    rows = {"gate": Rows(1, 2 * size, 0, size), "up": Rows(1, 2 * size, size, 2 * size), "down": None}
    for part, its_rows in rows.items():
        stack = f"feed_forward.experts.{'gate_up' if its_rows else 'down'}_proj"
        # Quantized files have separate tensors for each expert.
        alone = Stored(f"feed_forward.experts.{{expert}}.{part}_proj")
        expert = Stored(stack, is_stacked=True, is_transposed=True, rows=its_rows, weight="", otherwise=alone)
        names[f"mlp.experts.{{expert}}.{part}_proj"] = expert
        names[f"mlp.{part}_proj"] = Stored(f"feed_forward.{part}_proj")
        names[f"mlp.shared_expert.{part}_proj"] = Stored(f"feed_forward.shared_expert.{part}_proj")
    return names
