"""GGUF metadata: converts the metadata of a GGUF file to config.json's form."""

from collections.abc import Callable
from typing import Any

from tetrad.services.errors import ModelError, one_line
from tetrad.worker_svc.checkpoint.gguf_architectures import architecture_of
from tetrad.worker_svc.checkpoint.gguf_configs import scaling_of
from tetrad.worker_svc.checkpoint.gguf_facts import Facts


def config_from_metadata(
    field: Callable[[str], Any], has: Callable[[str], bool], *, vocab_size: int, is_tied: bool
) -> dict[str, Any]:
    """Return the dict that config.json would contain.

    Args:
        field: returns the value of a metadata key, or None.
        has: returns whether the file has a tensor.
        vocab_size: number of rows of the embedding; the metadata may lack it.
        is_tied: whether the file has no separate output matrix.
    """
    name = field("general.architecture")
    architecture = architecture_of(name)
    get = Facts(name, field, has)
    window = get("attention.sliding_window") or None
    if window and not architecture.knows_window and len(architecture.names) == 1:
        raise ModelError(f"GGUF {name}.attention.sliding_window is not supported: which layers have it is not said.")
    own = architecture.names[1 if window and not architecture.knows_window else 0]
    config = {
        "architectures": [architecture.mixture if architecture.mixture and get("expert_count") else own],
        "sliding_window": window,
        "vocab_size": vocab_size,
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get.num_layers,
        "num_nextn_predict_layers": get("nextn_predict_layers"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": _largest(get("attention.head_count_kv")),
        "head_dim": get("attention.key_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base"),
        "max_position_embeddings": get("context_length"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "tie_word_embeddings": is_tied,
        "rope_scaling": _scaling(get),
    } | _own_values(name, architecture.config, get)
    # Without a window's size in the metadata there are no windows, whatever the family assumes.
    return {key: value for key, value in config.items() if value is not None or key == "sliding_window"}


def _scaling(facts: Facts) -> dict[str, Any] | None:
    """Return the scaling of rotary embeddings. As in llama.cpp, a factor without a kind is linear; older files have only it."""
    kind = facts("rope.scaling.type")
    if kind is not None:
        return None if kind == "none" else scaling_of(facts)
    factor = facts("rope.scaling.factor") or facts("rope.scale_linear")
    return {"rope_type": "linear", "factor": factor} if factor and factor != 1 else None


def _own_values(name: str, config: Callable[[Facts], dict[str, Any]], facts: Facts) -> dict[str, Any]:
    try:
        return config(facts)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"The metadata of GGUF {name} cannot be read: {one_line(error)}.") from error


def _largest(count: Any) -> Any:
    """Return a number of heads: the number itself, or the largest number in a list with one entry per layer."""
    return max(count, default=None) if isinstance(count, list) else count
