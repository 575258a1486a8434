"""Attention with linear biases (ALiBi): the slopes of heads, and the families that always have them, BLOOM and MPT.

Press, Smith, Lewis, "Train Short, Test Long" (2022): positions are no part of embeddings, queries or keys. A head subtracts its
slope from a score for each token between key and query.
"""

from dataclasses import replace
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.decoder import MLP, QKV, decoder
from tetrad.worker_svc.families.llama import fused_by_head, fused_qkv
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_NORM_EPS, _POSITIONS, _EXPANSION = 1e-5, 2048, 4
"""Values of BLOOM's and MPT's configs that do not say; BLOOM's seldom say how long a context may be."""
_BIAS_MAX = 8.0
_MAX_HEADS = 1 << 12
_ALL = QKV | MLP | {"o_proj", "norm"}
_NORM_TYPES = dict.fromkeys(("low_precision_layernorm", "layernorm"), "layer")
_GELU = {"name": "gelu", "approximate": "none"}
_OTHER_ATTENTION = ("qk_ln", "qk_gn", "prefix_lm", "rope", "sliding_window_size", "attn_logit_softcapping")
"""Keys of MPT's attn_config that change results, and whose values must be false, null or -1."""


def slopes_of(num_heads: int, bias_max: float = _BIAS_MAX) -> tuple[float, ...]:
    """Return the slope of each head.

    Slopes are a geometric sequence that ends with 2 ** -bias_max, for the largest power of two of heads. Further heads have
    every other slope of the sequence for twice as many heads. Raise ModelError for an impossible number of heads.
    """
    if not 0 < num_heads <= _MAX_HEADS:
        raise ModelError(f"The model's config is impossible: num_heads is {str(num_heads)[:40]}, it must be 1 to {_MAX_HEADS}.")
    whole = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-bias_max * (index + 1) / whole) for index in range(whole)]
    further = [2.0 ** (-bias_max * (2 * index + 1) / (2 * whole)) for index in range(num_heads - whole)]
    return (*slopes, *further)


def bloom(values: Values) -> ModelConfig:
    """Describe BLOOM: embeddings are normed, and queries, keys and values of a head stand together in one matrix."""
    config = decoder(
        values,
        rope_kinds=(),
        is_tied=True,
        default_size=4 * int(values.need("n_embed", "hidden_size")),
        default_positions=int(values.get("seq_length", default=_POSITIONS)),
        default_eps=_NORM_EPS,
        activation="gelu_tanh",
        norm="layer",
        has_norm_of_embeddings=True,
        is_stream_normed=bool(values.get("apply_residual_connection_post_layernorm")),
        is_gated=False,
        biases=_ALL,
    )
    names = {
        "self_attn.o_proj": Stored("self_attention.dense"),
        "mlp.up_proj": Stored("mlp.dense_h_to_4h"),
        "mlp.down_proj": Stored("mlp.dense_4h_to_h"),
    } | fused_by_head(config, "self_attention.query_key_value")
    model = {
        "model.embed_tokens": "word_embeddings",
        "model.embed_norm": "word_embeddings_layernorm",
        "model.norm": "ln_f",
    }
    tensors = TensorNames(
        prefixes=("transformer.", ""),
        layers="h",
        in_layer=names,
        in_model={name: Stored(stored) for name, stored in model.items()},
    )
    return replace(config, slopes=slopes_of(config.num_heads), tensors=tensors)


def mpt(values: Values) -> ModelConfig:
    """Describe MPT: values of attention are in attn_config; slopes, bounds and scales as in MosaicML's code."""
    attention = _attention_of(values)
    values.choose("norm_type", known=_NORM_TYPES, default="layernorm")
    hidden, heads = int(values.need("d_model", "hidden_size")), int(values.need("n_heads", "num_attention_heads"))
    has_biases = not values.get("no_bias", default=True)
    config = decoder(
        values,
        rope_kinds=(),
        is_tied=True,
        default_size=int(values.get("expansion_ratio", default=_EXPANSION) * hidden),
        default_positions=_POSITIONS,
        default_eps=_NORM_EPS,
        activation="gelu",
        norm="layer",
        is_gated=False,
        num_kv_heads=_num_kv_heads(attention, heads),
        slopes=slopes_of(heads, float(attention.get("alibi_bias_max", default=_BIAS_MAX))),
        qkv_bound=float(attention.get("clip_qkv", default=0.0)),
        logit_multiplier=_logit_multiplier(values, hidden),
        biases=_ALL if has_biases else frozenset(),
    )
    names = {
        "input_layernorm": Stored("norm_1"),
        "post_attention_layernorm": Stored("norm_2"),
        "self_attn.o_proj": Stored("attn.out_proj"),
        "mlp.up_proj": Stored("ffn.up_proj"),
        "mlp.down_proj": Stored("ffn.down_proj"),
    } | fused_qkv(config, "attn.Wqkv")
    model = {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.norm_f"}
    tensors = TensorNames(
        layers="transformer.blocks", in_layer=names, in_model={name: Stored(stored) for name, stored in model.items()}
    )
    scale = float(attention.get("softmax_scale", default=config.attention_scale))
    return replace(config, attention_scale=scale, tensors=tensors)


def _attention_of(values: Values) -> Values:
    """Return the values of attn_config; raise ModelError for one, or one of the layers' MLPs, that is not supported."""
    attention = Values(values.get("attn_config", default={}) | {"architectures": [values.architecture]})
    if not attention.get("alibi", default=True):
        raise _refused("attn_config.alibi", value=False)
    for key in _OTHER_ATTENTION:
        if attention.get(key) not in (None, False, -1):
            raise _refused(f"attn_config.{key}", attention.get(key))
    mlp = values.get("ffn_config", default={})
    if (kind := mlp.get("ffn_type", "mptmlp")) != "mptmlp":
        raise _refused("ffn_config.ffn_type", kind)
    if (activation := {"approximate": "none"} | (mlp.get("ffn_act_fn") or _GELU)) != _GELU:
        raise _refused("ffn_config.ffn_act_fn", activation)
    if overrides := values.get("block_overrides"):
        raise _refused("block_overrides", overrides)
    return attention


def _num_kv_heads(attention: Values, num_heads: int) -> int:
    of_kind = {
        "multihead_attention": num_heads,
        "multiquery_attention": 1,
        "grouped_query_attention": int(attention.get("kv_n_heads", default=num_heads)),
    }
    kind = attention.get("attn_type", default="multihead_attention")
    if kind not in of_kind:
        raise _refused("attn_config.attn_type", kind)
    return of_kind[kind]


def _logit_multiplier(values: Values, hidden_size: int) -> float:
    scale = values.get("logit_scale", default=1.0)
    return hidden_size**-0.5 if scale == "inv_sqrt_d_model" else float(scale)


def _refused(key: str, value: Any) -> ModelError:
    return ModelError(f"The model's config has {key} {str(value)[:80]}, which is not supported.")
