"""Llama, and models with small differences from it: a window, biases, layers without rotary embeddings, multipliers."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.decoder import MLP, QKV, decoder
from tetrad.worker_svc.families.values import FULL, SLIDING, WINDOW, Values
from tetrad.worker_svc.model_facts.config import ModelConfig, QueryScaling
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored, TensorNames

_NO_ROPE_INTERVAL = 4
_ERNIE_HEAD_DIM = 128
_MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""The parameters of a config without values of the rotary embedding."""
_PHI3_ORIGINAL = 4096
"""Longest context before the scaling, if the config has none beside the scaling; as in transformers, whatever is in it."""


def llama(values: Values) -> ModelConfig:
    """Describe Llama 2 and 3."""
    return decoder(values)


def mistral(values: Values) -> ModelConfig:
    """Describe Mistral, with a window in all layers, and Ministral, with windows in the layers that layer_types names."""
    return decoder(values, default_kind=SLIDING, default_window=WINDOW)


def ministral3(values: Values) -> ModelConfig:
    """Describe Ministral 3: queries are scaled by their position."""
    parameters = values.get("rope_scaling") or values.get("rope_parameters", default=_MINISTRAL3_ROPE)
    config = decoder(values, default_kind=SLIDING, rope={"scaling": _MINISTRAL3_ROPE})
    if not parameters.get("llama_4_scaling_beta"):
        return config
    values.ignore("llama_4_scaling_beta")
    scaling = QueryScaling(float(parameters["llama_4_scaling_beta"]), float(parameters["original_max_position_embeddings"]))
    return replace(config, layers=tuple(replace(layer, query_scaling=scaling) for layer in config.layers))


def phi3(values: Values) -> ModelConfig:
    """Describe Phi-3 and Phi-4: fused matrices, rotary embeddings on a part of a head."""
    config = decoder(values, default_kind=SLIDING, rope={"original": _PHI3_ORIGINAL})
    return replace(config, tensors=TensorNames(in_layer=fused_qkv(config) | fused_gate_up(config)))


def smollm3(values: Values) -> ModelConfig:
    """Describe SmolLM3: every fourth layer has no rotary embeddings; if the config has windows, only these layers do."""
    interval, num_layers = int(values.get("no_rope_layer_interval", default=_NO_ROPE_INTERVAL)), values.num_layers()
    turns = values.get("no_rope_layers", default=[(number + 1) % interval != 0 for number in range(num_layers)])
    if len(turns) != num_layers:
        raise ModelError(f"The model's config has no_rope_layers for {len(turns)} of {num_layers} layers.")
    other_kind = SLIDING if values.get("use_sliding_window", default=False) else FULL
    kinds = values.layer_kinds([FULL if turn else other_kind for turn in turns])
    config = decoder(values, kinds=kinds, is_tied=True, rope={"theta": 2e6})
    layers = [layer if turn else replace(layer, rope=None) for layer, turn in zip(config.layers, turns, strict=True)]
    return replace(config, layers=tuple(layers))


def granite(values: Values, kinds: Sequence[str] | None = None) -> ModelConfig:
    """Describe Granite 3: Llama with multipliers. `kinds`: see decoder."""
    return decoder(
        values,
        kinds=kinds,
        attention_scale=float(values.get("attention_multiplier", default=1.0)),
        embedding_multiplier=float(values.get("embedding_multiplier", default=1.0)),
        residual_multiplier=float(values.get("residual_multiplier", default=1.0)),
        logit_multiplier=1 / float(values.get("logits_scaling", default=1.0)),
    )


def minicpm(values: Values) -> ModelConfig:
    """Describe MiniCPM 1, 2 and 4: multipliers, of which those of residuals and logits depend on the model's sizes."""
    if values.get("sparse_config") is not None:
        raise ModelError("The model's config has sparse_config, which is not supported; without it, attention sees all tokens.")
    return decoder(
        values,
        is_tied=True,
        embedding_multiplier=float(values.get("scale_emb", default=1.0)),
        residual_multiplier=float(values.get("scale_depth", default=1.0)) / math.sqrt(values.num_layers()),
        logit_multiplier=float(values.get("dim_model_base", default=1.0)) / float(values.need("hidden_size")),
    )


def internlm3(values: Values) -> ModelConfig:
    """Describe InternLM3: Llama with separate keys for the biases of queries, keys and values, and for all others."""
    others = MLP | {"o_proj"} if values.get("bias") else frozenset()
    return decoder(values, biases=others | (QKV if values.get("qkv_bias") else frozenset()))


def ernie(values: Values) -> ModelConfig:
    """Describe ERNIE 4.5: rotated pairs are side by side; one key of the config enables all biases."""
    biases = QKV | MLP | {"o_proj"} if values.get("use_bias") else frozenset()
    head_dim = int(values.if_absent("head_dim", _ERNIE_HEAD_DIM) or 0)
    config = decoder(values, is_tied=True, rope={"theta": 5e5}, biases=biases, head_dim=head_dim)
    pairs = (config.head_dim, config.head_dim)
    names = {f"self_attn.{part}_proj": Stored(f"self_attn.{part}_proj", paired=pairs) for part in "qk"}
    return replace(config, tensors=TensorNames(in_layer=names))


def hunyuan(values: Values) -> ModelConfig:
    """Describe Hunyuan's dense models: norms of queries and keys follow the rotation."""
    values.ignore("use_qk_norm")  # without them, the files lack a tensor
    config = decoder(values, head_norms="head", are_heads_normed_last=True)
    names = {"self_attn.q_norm": Stored("self_attn.query_layernorm"), "self_attn.k_norm": Stored("self_attn.key_layernorm")}
    return replace(config, biases=config.biases - MLP, tensors=TensorNames(in_layer=names))


def seed_oss(values: Values) -> ModelConfig:
    """Describe Seed-OSS: biases of queries, keys and values; a separate key of the config enables the output's bias."""
    config = decoder(values)
    biases = (config.biases & QKV) | ({"o_proj"} if values.get("attention_out_bias") else frozenset())
    return replace(config, biases=biases | (config.biases - QKV - {"o_proj"}))


def arcee(values: Values) -> ModelConfig:
    """Describe AFM: an MLP without a gate."""
    return decoder(values, default_activation="relu2", is_gated=False)


def exaone(values: Values) -> ModelConfig:
    """Describe EXAONE 3 and 3.5: Llama with GPT-2's tensor names."""
    config = decoder(values)
    in_layer = {
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        **{f"self_attn.{part}_proj": f"attn.attention.{part}_proj" for part in "qkv"},
        "self_attn.o_proj": "attn.attention.out_proj",
        "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1",
        "mlp.down_proj": "mlp.c_proj",
    }
    tensors = TensorNames(
        layers="transformer.h",
        in_layer={name: Stored(stored) for name, stored in in_layer.items()},
        in_model={"model.embed_tokens": Stored("transformer.wte"), "model.norm": Stored("transformer.ln_f")},
    )
    return replace(config, tensors=tensors)


def fused_qkv(config: ModelConfig, name: str = "self_attn.qkv_proj") -> dict[str, Stored]:
    """Return the rows of queries, keys and values in a matrix that contains them one after another."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    size = query + 2 * key
    ends = {"q": (0, query), "k": (query, query + key), "v": (query + key, size)}
    return {f"self_attn.{part}_proj": Stored(name, rows=Rows(1, size, *rows)) for part, rows in ends.items()}


def fused_by_head(config: ModelConfig, name: str) -> dict[str, Stored]:
    """Return the rows of queries, keys and values in a matrix that contains them for one KV head after another."""
    groups, dim = config.num_kv_heads, config.head_dim
    queries = config.num_heads // groups * dim
    size = queries + 2 * dim
    ends = {"q": (0, queries), "k": (queries, queries + dim), "v": (queries + dim, size)}
    return {f"self_attn.{part}_proj": Stored(name, rows=Rows(groups, size, *rows)) for part, rows in ends.items()}


def fused_gate_up(config: ModelConfig, name: str = "mlp.gate_up_proj") -> dict[str, Stored]:
    """Return the rows of gate and up in a matrix that contains them one after the other."""
    size = config.layers[0].intermediate_size
    return {
        "mlp.gate_proj": Stored(name, rows=Rows(1, 2 * size, 0, size)),
        "mlp.up_proj": Stored(name, rows=Rows(1, 2 * size, size, 2 * size)),
    }
