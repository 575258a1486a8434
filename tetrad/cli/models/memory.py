"""Memory need: computes the bytes of a model's weights and of its keys and values, by type and context."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tetrad.worker_svc.families.encoders import is_encoder, read_encoder_config
from tetrad.worker_svc.families.registry import find_family, supported_config
from tetrad.worker_svc.families.values import architecture_of
from tetrad.worker_svc.model_facts.config import ModelConfig

WEIGHT_TYPES = {"float32": 4.0, "bfloat16": 2.0}
"""Type of weights -> bytes of a parameter. Quantized files keep their size."""
KV_TYPES = {"float32": 4.0, "float16": 2.0, "int8": 1.0 + 2 / 32}
"""--kv-cache-dtype -> bytes of a number; int8 has a float16 scale per 32 numbers. bfloat16 takes as much as float16."""
_CONTEXTS = (2048, 8192, 32_768, 131_072)


@dataclass(frozen=True, slots=True)
class KvNeed:
    """The memory of the keys and values of one request.

    Attributes:
        max_tokens: the model's longest context.
        by_context: number of tokens -> type -> bytes.
    """

    max_tokens: int
    by_context: Mapping[int, Mapping[str, int]]


def kv_need(config: Mapping[str, Any]) -> KvNeed:
    """Return the memory for several contexts up to the model's longest; ModelError if the model is not supported.

    An encoder keeps no keys and values; those of transformers' models are unknown before loading.
    """
    if is_encoder(config):
        return KvNeed(read_encoder_config(config).max_position_embeddings, {})
    if find_family(architecture_of(config)) is None:
        return KvNeed(int(config.get("max_position_embeddings") or 0), {})
    facts = supported_config(config)
    longest = facts.max_position_embeddings
    contexts = [*(tokens for tokens in _CONTEXTS if tokens < longest), longest]
    return KvNeed(longest, {tokens: _bytes_of(facts, tokens) for tokens in contexts})


def encoded_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes that the encoded item of a request takes, in a model with an encoder and a decoder; 0: another model."""
    if is_encoder(config) or find_family(architecture_of(config)) is None:
        return 0
    facts = supported_config(config)
    return round(2 * facts.num_layers * facts.num_heads * facts.head_dim * facts.encoder_length * WEIGHT_TYPES["float32"])


def _bytes_of(facts: ModelConfig, num_tokens: int) -> dict[str, int]:
    numbers = 2 * facts.num_layers * facts.num_kv_heads * facts.head_dim * num_tokens  # keys and values
    return {name: round(numbers * size) for name, size in KV_TYPES.items()}
