"""Whisper: describes the decoder, whose layers attend to the output of an encoder of audio.

The encoder, and the products of its output that are keys and values, are not described; media/ runs them.
"""

from dataclasses import replace

from tetrad.worker_svc.families.decoder import MLP, decoder
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_EPS = 1e-5
"""Epsilon of torch's LayerNorm, which the config does not name."""
_BIASES = MLP | {"norm", "q_proj", "v_proj", "o_proj"}


def whisper(values: Values) -> ModelConfig:
    """Describe Whisper: learned positions, LayerNorm, an MLP without a gate; keys have no bias."""
    text = {
        "vocab_size": values.need("vocab_size"),
        "hidden_size": values.need("d_model"),
        "num_hidden_layers": values.need("decoder_layers"),
        "num_attention_heads": values.need("decoder_attention_heads"),
        "intermediate_size": values.need("decoder_ffn_dim"),
        "max_position_embeddings": values.need("max_target_positions"),
        "activation_function": values.get("activation_function", default="gelu"),
    }
    config = decoder(
        values.inside(text, {}, is_tied=True),
        rope_kinds=(),
        default_eps=_EPS,
        norm="layer",
        is_gated=False,
        biases=_BIASES,
        encoder_length=int(values.need("max_source_positions")),
    )
    in_layer = {
        "input_layernorm": "self_attn_layer_norm",
        "self_attn.o_proj": "self_attn.out_proj",
        "cross_attn_layernorm": "encoder_attn_layer_norm",
        "cross_attn.q_proj": "encoder_attn.q_proj",
        "cross_attn.o_proj": "encoder_attn.out_proj",
        "post_attention_layernorm": "final_layer_norm",
        "mlp.up_proj": "fc1",
        "mlp.down_proj": "fc2",
    }
    layers = range(config.num_layers)
    products = [f"model.decoder.layers.{index}.encoder_attn.{name}." for index in layers for name in ("k_proj", "v_proj")]
    in_model = {
        "model.embed_tokens": "model.decoder.embed_tokens",
        "model.embed_positions": "model.decoder.embed_positions",
        "model.norm": "model.decoder.layer_norm",
        "lm_head": "proj_out",
    }
    tensors = TensorNames(
        layers="model.decoder.layers",
        in_layer={name: Stored(stored) for name, stored in in_layer.items()},
        in_model={name: Stored(stored) for name, stored in in_model.items()},
        ignored=("proj_out.weight",),
        unused_layers=("model.encoder.", *products),
    )
    return replace(config, num_learned_positions=config.max_position_embeddings, tensors=tensors)
