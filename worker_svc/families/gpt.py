"""GPT-2 and similar models, with LayerNorm and an MLP without a gate: GPT-NeoX, StarCoder 2, Falcon."""

from dataclasses import replace

from tetrad.worker_svc.families.alibi import slopes_of
from tetrad.worker_svc.families.decoder import MLP, QKV, decoder
from tetrad.worker_svc.families.llama import fused_by_head, fused_qkv
from tetrad.worker_svc.families.values import FULL, SLIDING, Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_NORM = frozenset({"norm"})
_FALCON_POSITIONS = 2048
_ALL = QKV | MLP | _NORM | {"o_proj"}
_MASKS = ("attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias")
"""Names of the causal masks that older files contain; they are not read."""


def gpt2(values: Values) -> ModelConfig:
    """Describe GPT-2: learned positions, matrices [inputs, outputs]."""
    config = decoder(
        values,
        rope_kinds=(),
        is_tied=True,
        default_size=4 * int(values.need("n_embd", "hidden_size")),
        norm="layer",
        is_gated=False,
        biases=_ALL,
        default_activation="gelu_new",
    )
    names = {
        "input_layernorm": Stored("ln_1"),
        "self_attn.o_proj": Stored("attn.c_proj", is_transposed=True),
        "post_attention_layernorm": Stored("ln_2"),
        "mlp.up_proj": Stored("mlp.c_fc", is_transposed=True),
        "mlp.down_proj": Stored("mlp.c_proj", is_transposed=True),
    } | {name: replace(stored, is_transposed=True) for name, stored in fused_qkv(config, "attn.c_attn").items()}
    model = {"model.embed_tokens": "wte", "model.embed_positions": "wpe", "model.norm": "ln_f"}
    tensors = TensorNames(
        prefixes=("transformer.", ""),
        layers="h",
        in_layer=names,
        in_model={name: Stored(stored) for name, stored in model.items()},
        ignored=_MASKS,
    )
    scale = config.attention_scale if values.get("scale_attn_weights", default=True) else 1.0
    return replace(config, attention_scale=scale, num_learned_positions=config.max_position_embeddings, tensors=tensors)


def gpt_neox(values: Values) -> ModelConfig:
    """Describe GPT-NeoX and Pythia: attention and MLP in parallel, rotary embeddings on a quarter of a head."""
    config = decoder(
        values,
        rope={"share": 0.25},
        default_activation="gelu",
        norm="layer",
        is_gated=False,
        is_parallel=bool(values.get("use_parallel_residual", default=True)),
        biases=_ALL if values.get("attention_bias", default=True) else _ALL - QKV - {"o_proj"},
    )
    names = {
        "self_attn.o_proj": Stored("attention.dense"),
        "mlp.up_proj": Stored("mlp.dense_h_to_4h"),
        "mlp.down_proj": Stored("mlp.dense_4h_to_h"),
    } | fused_by_head(config, "attention.query_key_value")
    model = {
        "model.embed_tokens": "gpt_neox.embed_in",
        "model.norm": "gpt_neox.final_layer_norm",
        "lm_head": "embed_out",
    }
    tensors = TensorNames(
        layers="gpt_neox.layers",
        in_layer=names,
        in_model={name: Stored(stored) for name, stored in model.items()},
        ignored=_MASKS,
    )
    return replace(config, tensors=tensors)


def starcoder2(values: Values) -> ModelConfig:
    """Describe StarCoder 2: separate matrices, a window in all layers."""
    return decoder(
        values,
        default_kind=SLIDING,
        default_activation="gelu_pytorch_tanh",
        is_tied=True,
        norm="layer",
        is_gated=False,
        biases=_ALL if values.get("use_bias", default=True) else _NORM,
        tensors=TensorNames(in_layer={"mlp.up_proj": Stored("mlp.c_fc"), "mlp.down_proj": Stored("mlp.c_proj")}),
    )


def falcon(values: Values) -> ModelConfig:
    """Describe Falcon: attention and MLP in parallel; one KV head (7B), or several and a norm per branch (40B, 180B, 11B).

    The RW models have linear biases, which are scaled as products are, in place of rotary embeddings.
    """
    is_new = bool(values.get("new_decoder_architecture"))
    is_parallel = is_new or bool(values.get("parallel_attn", default=True))
    has_two_norms = not is_parallel or (is_new and int(values.get("num_ln_in_parallel_attn", default=2)) == 2)
    hidden = int(values.need("n_embed", "hidden_size"))
    heads = int(values.need("num_attention_heads"))
    has_slopes = bool(values.get("alibi"))
    kv_heads = (
        int(values.get("num_kv_heads", default=heads)) if is_new else 1 if values.get("multi_query", default=True) else heads
    )
    config = decoder(
        values,
        rope_kinds=() if has_slopes else (FULL, SLIDING),
        is_tied=True,
        default_size=4 * hidden,
        default_positions=_FALCON_POSITIONS,
        num_kv_heads=kv_heads,
        norm="layer",
        is_gated=False,
        default_activation="gelu",
        is_parallel=is_parallel,
        is_norm_shared=not has_two_norms,
        biases=_ALL if values.get("bias") else _NORM,
    )
    name = "self_attention.query_key_value"
    norms = ("ln_attn", "ln_mlp") if is_new and has_two_norms else ("input_layernorm", "post_attention_layernorm")
    names = {
        "input_layernorm": Stored(norms[0]),
        "post_attention_layernorm": Stored(norms[1]),
        "self_attn.o_proj": Stored("self_attention.dense"),
        "mlp.up_proj": Stored("mlp.dense_h_to_4h"),
        "mlp.down_proj": Stored("mlp.dense_4h_to_h"),
    } | (fused_by_head(config, name) if is_new or kv_heads == heads else fused_qkv(config, name))
    model = {"model.embed_tokens": "transformer.word_embeddings", "model.norm": "transformer.ln_f"}
    tensors = TensorNames(
        layers="transformer.h", in_layer=names, in_model={name: Stored(stored) for name, stored in model.items()}
    )
    slopes = tuple(slope * config.attention_scale for slope in slopes_of(heads)) if has_slopes else ()
    return replace(config, slopes=slopes, tensors=tensors)
