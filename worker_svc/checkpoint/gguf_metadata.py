"""GGUF metadata and tensor names -> config.json's form and Hugging Face's names."""

from collections.abc import Callable, Mapping
from typing import Any

from tetrad.services.errors import ModelError

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TENSORS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """Return the GGUF name of a Hugging Face tensor name; the name itself if it has none."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, part = stem.split(".", 3)
        return f"blk.{index}.{_LAYER_TENSORS[part]}.{kind}" if part in _LAYER_TENSORS else name
    return f"{_TENSORS[stem]}.{kind}" if stem in _TENSORS else name


def config_from_metadata(field: Callable[[str], Any], *, vocab_size: int, is_tied: bool) -> dict[str, Any]:
    """Return the dict that config.json would hold.

    Args:
        field: value of a metadata key, or None.
        vocab_size: rows of the embedding; the metadata may lack it.
        is_tied: whether the file has no output matrix of its own.
    """
    architecture = field("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        supported = ", ".join(sorted(_ARCHITECTURES))
        raise ModelError(f"GGUF architecture {str(architecture)[:80]!r} is not supported; supported: {supported}.")

    def get(key: str) -> Any:
        return field(f"{architecture}.{key}")

    window = get("attention.sliding_window")
    config = {
        "architectures": [_sliding_architecture(architecture) if window else _ARCHITECTURES[architecture]],
        "sliding_window": window,
        "vocab_size": vocab_size,
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length") or get("rope.dimension_count"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base"),
        "max_position_embeddings": get("context_length"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "tie_word_embeddings": is_tied,
        "rope_scaling": _rope_scaling(get),
    }
    return {key: value for key, value in config.items() if value is not None}


def _sliding_architecture(architecture: str) -> str:
    """Return the architecture all of whose layers have a sliding window."""
    if architecture != "llama":
        raise ModelError(f"GGUF {architecture}.attention.sliding_window is not supported: which layers have it is not said.")
    return "MistralForCausalLM"


def _rope_scaling(get: Callable[[str], Any]) -> Mapping[str, Any] | None:
    kind = get("rope.scaling.type")
    if kind in (None, "none"):
        return None
    scaling = {
        "rope_type": kind,
        "factor": get("rope.scaling.factor"),
        "original_max_position_embeddings": get("rope.scaling.original_context_length"),
    }
    return {key: value for key, value in scaling.items() if value is not None}
