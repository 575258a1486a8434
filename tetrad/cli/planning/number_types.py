"""Number types: sizes of weights and of cached keys and values, by the types in a checkpoint or on the command line."""

from collections.abc import Mapping, Sequence
from typing import Any

from tetrad.services.errors import InvalidRequest, ModelError
from tetrad.worker_svc.model_facts.quantization import method_of

DTYPES: Mapping[str, float] = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""Type of activations, of tensors without quantization, and by default of the cache -> bytes of a number."""
QUANTIZATIONS: Mapping[str, float] = {"fp8": 1.0, "int8": 1.0, "int4": 0.5 + 3 / 128}
"""Quantization at load -> bytes of a weight; int4 has a scale of two bytes and a zero of one byte per 128 weights."""
CACHE_DTYPES: Mapping[str, float] = {**DTYPES, "fp8": 1.0}
"""--kv-cache-dtype -> bytes of a number."""

_KEPT = ("lm_head.weight", "embed_tokens.weight", "embed_positions.weight", "router.weight", "shared_expert_gate.weight")
_BITS_OF_METHODS = {"fbgemm_fp8": 8, "fp8": 8, "mxfp4": 4}
_BYTES_OF_ALGORITHMS = {"FP8": 1.0, "FP8_PER_CHANNEL_PER_TOKEN": 1.0, "NVFP4": 0.5 + 2 / 16}
"""ModelOpt's quant_algo -> bytes of a weight; NVFP4 has a scale of two bytes per 16 weights."""
_BITS_NAMES = ("bits", "num_bits", "w_bit")
_GROUP_BYTES = 3 / 128


class WeightBytes:
    """The sizes of a model's tensors: matrices of layers may be quantized, all others have the type of activations.

    Args:
        dtype: one of DTYPES.
        matrix_bytes: bytes of one number of a layer's matrix.
        keeps_tables: whether embeddings, logits and routers have the type of activations.
    """

    def __init__(self, dtype: str, matrix_bytes: float, *, keeps_tables: bool = True) -> None:
        self._plain, self._matrix = DTYPES[dtype], matrix_bytes
        self._kept = _KEPT if keeps_tables else ()

    def of(self, name: str, shape: Sequence[int]) -> float:
        """Return the bytes of one value of a tensor with this canonical name."""
        is_matrix = len(shape) > 1 and not name.endswith(self._kept)
        return self._matrix if is_matrix else self._plain


def matrix_bytes(config: Mapping[str, Any], dtype: str, quantization: str | None) -> float:
    """Return the bytes of one number of a layer's matrix.

    Args:
        config: content of config.json.
        dtype: one of DTYPES.
        quantization: one of QUANTIZATIONS; None: the checkpoint's.

    Raises:
        InvalidRequest: a quantized checkpoint would be quantized again.
        ModelError: the number of bits of the checkpoint's quantization is unknown.
    """
    stored = config.get("quantization_config")
    if stored is None:
        return QUANTIZATIONS[quantization] if quantization else DTYPES[dtype]
    method = method_of(stored)
    if quantization is not None:
        raise InvalidRequest(f"quantization {quantization} cannot be had of a model that is quantized as {method} already.")
    if method == "modelopt" and (found := _BYTES_OF_ALGORITHMS.get(stored.get("quant_algo"))):
        return found
    bits = _BITS_OF_METHODS.get(method) or _bits_of(stored)
    if bits is None:
        raise ModelError(f"quantization_config of method {method!r} does not say how many bits a weight has.")
    return bits / 8 + (_GROUP_BYTES if bits < 8 else 0)


def _bits_of(value: object) -> int | None:
    """Return the first number of bits in a quantization_config, at any depth; None if there is none."""
    if isinstance(value, Mapping):
        if value.get("load_in_4bit") is True:
            return 4
        if value.get("load_in_8bit") is True:
            return 8
        for key in _BITS_NAMES:
            if type(value.get(key)) is int and 1 <= value[key] <= 16:
                return int(value[key])
        return next((bits for each in value.values() if (bits := _bits_of(each)) is not None), None)
    return None
