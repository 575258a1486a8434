"""LFM2: short convolutions in most layers, attention in the others."""

from dataclasses import replace

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.states import attention_layers, mixer_names, with_states
from tetrad.worker_svc.families.values import FULL, Values
from tetrad.worker_svc.model_facts.config import Experts, ModelConfig
from tetrad.worker_svc.model_facts.states import ShortConvolution
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}


def lfm2(values: Values) -> ModelConfig:
    """Describe LFM2."""
    return _described(values, _intermediate_size(values))


def _described(values: Values, intermediate_size: int) -> ModelConfig:
    number = values.num_layers()
    with_attention = set(values.get("full_attn_idxs", default=range(number)))
    have_attention = attention_layers(values, [index in with_attention for index in range(number)])
    is_tied = bool(values.get("tie_embedding", default=True))
    config = decoder(values, kinds=[FULL] * number, rope={"theta": 1e6}, is_tied=is_tied, head_norms="head")
    state = ShortConvolution(config.hidden_size, int(values.get("conv_L_cache", default=3)))
    config = replace(config, layers=tuple(replace(layer, intermediate_size=intermediate_size) for layer in config.layers))
    return with_states(
        config,
        state,
        have_attention,
        biases=frozenset({"conv", *state.parts, "out_proj"} if values.get("conv_bias") else ()),
        tensors=TensorNames(
            in_layer={
                **mixer_names("conv", state, convolution="conv"),
                "input_layernorm": Stored("operator_norm"),
                "post_attention_layernorm": Stored("ffn_norm"),
                "self_attn.o_proj": Stored("self_attn.out_proj"),
                "self_attn.q_norm": Stored("self_attn.q_layernorm"),
                "self_attn.k_norm": Stored("self_attn.k_layernorm"),
                **{f"mlp.{part}_proj": Stored(f"feed_forward.{stored}") for part, stored in _PARTS.items()},
            },
            in_model={"model.norm": Stored("model.embedding_norm")},
        ),
    )


def lfm2_moe(values: Values) -> ModelConfig:
    """Describe LFM2 MoE: dense first layers, then experts chosen by sigmoids and a bias."""
    if not values.get("use_expert_bias", default=True):
        raise ModelError("The model's config has use_expert_bias false, which is not supported.")
    experts = Experts(
        num_experts=int(values.need("num_experts")),
        num_chosen=int(values.need("num_experts_per_tok")),
        intermediate_size=int(values.need("moe_intermediate_size")),
        router="grouped_sigmoid",
        is_renormalized=bool(values.get("norm_topk_prob", default=True)),
        scale=float(values.get("routed_scaling_factor", default=1.0)),
    )
    config, num_dense = (
        _described(values, int(values.need("intermediate_size"))),
        int(values.get("num_dense_layers", default=2)),
    )
    layers = [layer if index < num_dense else replace(layer, experts=experts) for index, layer in enumerate(config.layers)]
    names = {"mlp.router": Stored("feed_forward.gate"), "mlp.router_correction": Stored("feed_forward.expert_bias")}
    names |= {
        f"mlp.experts.{{expert}}.{part}_proj": Stored(f"feed_forward.experts.{{expert}}.{stored}")
        for part, stored in _PARTS.items()
    }
    in_layer = dict(config.tensors.in_layer) | names
    return replace(config, layers=tuple(layers), tensors=replace(config.tensors, in_layer=in_layer))


def _intermediate_size(values: Values) -> int:
    size = int(values.get("block_ff_dim", "intermediate_size", default=12288))
    if not values.get("block_auto_adjust_ff_dim", default=True):
        return size
    multiplier, multiple = values.get("block_ffn_dim_multiplier"), int(values.get("block_multiple_of", default=256))
    size = int(2 * size / 3)
    return size if multiplier is None else -(-int(multiplier * size) // multiple) * multiple
