"""Model config: the facts of a decoder, read from Hugging Face's config.json form.

GGUF metadata is translated to the same form (checkpoint/gguf_metadata.py), so this is the one reader. Missing or impossible
values raise ModelError with one line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tetrad.services.errors import ModelError, one_line


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the llama family needs to know of a model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    sliding_window: int | None


_LIMITS = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 19,
    "num_layers": 1 << 10,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "max_position_embeddings": 1 << 24,
}
"""About ten times what the largest models have: what is beyond is a broken or hostile file, found before memory is taken."""


_QWEN_FULL_LAYERS = 28
"""Default of max_window_layers: the layers before that one see all keys."""

_NOT_COMPUTED: Mapping[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "lm_head_multiplier": (1,),
    "query_pre_attn_scalar": (),
    "no_rope_layers": (),  # 1 for a layer that turns
    "no_rope_layer_interval": (),
    "num_experts": (1,),
    "num_local_experts": (1,),
    "n_routed_experts": (1,),
    "kv_lora_rank": (),
    "attention_chunk_size": (),
    "attn_temperature_tuning": (),
    "llama_4_scaling_beta": (),  # scales queries by their position (Ministral 3)
    "use_qk_norm": (),
    "clip_qkv": (),
    "attention_sinks": (),
    "use_parallel_residual": (),
}
"""Keys that other models of similar names compute with -> the values that mean nothing; false and null always do."""


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """Return the facts in a config.json's dict."""
    architecture = architecture_of(config)
    try:
        facts = _read(architecture, config)
    except KeyError as error:
        raise ModelError(f"The model's config has no {error.args[0]!r}.") from error
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ModelError(f"The model's config cannot be read: {one_line(error)}.") from error
    _check(facts)
    return facts


def architecture_of(config: Mapping[str, Any]) -> str:
    """Return the name of the model's architecture; ModelError if there is none."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelError("The model's config names no architecture.")
    return architectures[0]


def _check(facts: ModelConfig) -> None:
    for name, limit in _LIMITS.items():
        value = getattr(facts, name)
        if not 0 < value <= limit:
            raise ModelError(f"The model's config is impossible: {name} is {str(value)[:40]}, it must be 1 to {limit}.")
    if facts.head_dim % 2 or facts.num_heads % facts.num_kv_heads:
        raise ModelError(
            f"The model's config is impossible: {facts.num_heads} heads of {facts.head_dim} share {facts.num_kv_heads} of keys;"
            " the size of heads must be even, and each of keys serve equally many."
        )
    if facts.rotary_dim % 2 or not 0 < facts.rotary_dim <= facts.head_dim:
        raise ModelError(
            f"The model's config is impossible: {facts.rotary_dim} dimensions of {facts.head_dim} turn with the position"
            " (partial_rotary_factor); they must be an even number of them."
        )


def _read(architecture: str, config: Mapping[str, Any]) -> ModelConfig:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"Activation {str(activation)[:80]!r} is not supported; supported: silu.")
    _check_computed(config)
    theta, scaling = _rope(config)
    head_dim = int(config.get("head_dim") or hidden // heads)
    return ModelConfig(
        architecture=architecture,
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        rotary_dim=_rotary_dim(config, head_dim),
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=int(config["max_position_embeddings"]),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        sliding_window=_sliding_window(architecture, config),
    )


def _rope(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Read both forms: rope_theta with rope_scaling, and the newer rope_parameters that holds them together."""
    parameters = config.get("rope_parameters") or {}
    theta = parameters.get("rope_theta", config.get("rope_theta", 10_000.0))
    scaling = dict(config.get("rope_scaling") or parameters)
    if "type" in scaling and "rope_type" not in scaling:
        scaling["rope_type"] = scaling["type"]
    if scaling.get("rope_type", "default") == "default":
        return float(theta), None
    if scaling["rope_type"] == "yarn":
        # What a file leaves out follows from how long its contexts are.
        longest = float(config["max_position_embeddings"])
        original = scaling.setdefault("original_max_position_embeddings", longest)
        if scaling.get("factor") is None:
            scaling["factor"] = longest / float(original)
    return float(theta), scaling


def _rotary_dim(config: Mapping[str, Any], head_dim: int) -> int:
    """Return how many of a head's dimensions turn with the position; where it is said has changed over time."""
    for place in (config.get("rope_parameters") or {}, config.get("rope_scaling") or {}, config):
        if place.get("partial_rotary_factor") is not None:
            return int(head_dim * float(place["partial_rotary_factor"]))
    return head_dim


def _sliding_window(architecture: str, config: Mapping[str, Any]) -> int | None:
    """Return how many keys a query sees; None: all. The defaults are those of each family's config in transformers."""
    window = config.get("sliding_window")
    is_qwen = architecture.startswith("Qwen")
    kinds = set(config.get("layer_types") or ())
    if not window or not config.get("use_sliding_window", not is_qwen) or (architecture == "LlamaForCausalLM" and not kinds):
        return None
    if not kinds and is_qwen:
        num_full = int(config.get("max_window_layers", _QWEN_FULL_LAYERS))
        kinds = {"full_attention"} if num_full else set()
        kinds |= {"sliding_attention"} if num_full < int(config["num_hidden_layers"]) else set()
    if kinds == {"full_attention"}:
        return None
    if len(kinds) > 1:
        raise ModelError(f"Layers of different attention ({', '.join(sorted(kinds))}) are not supported.")
    return int(window)


def _check_computed(config: Mapping[str, Any]) -> None:
    """Raise ModelError for a key that changes what a model computes and that nothing here reads."""
    for place in (config, config.get("rope_parameters") or {}, config.get("rope_scaling") or {}):
        for key, neutral in _NOT_COMPUTED.items():
            value = place.get(key)
            if value and value not in neutral and not (isinstance(value, list) and all(value)):
                raise ModelError(f"The model's config has {key} {str(value)[:80]}, which is not supported.")
