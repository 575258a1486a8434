"""Host numbers: the types of weights, inputs of products, keys and values on the host."""

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.layers.linear import LinearFactory, PackedLinear, PlainLinear, can_pack
from tetrad.worker_svc.layers.parameters import HostParameters
from tetrad.worker_svc.native.linears import PairParameters, QuantizedParameters
from tetrad.worker_svc.native.matrix_loaders import FloatMatrices, StoredMatrices
from tetrad.worker_svc.native.parameters import MatrixLoader
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import pack_int8, pack_pairs

BFLOAT16 = "bfloat16"
_KV_DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


def check_dtype(request: LoadRequest, team: Team | None) -> None:
    """Raise ModelError if this machine cannot compute with the requested type of activations.

    Args:
        request: names the type and the quantization.
        team: the threads of the native kernels; None: these are not used.
    """
    if request.dtype not in ("", "auto", "float32", BFLOAT16):
        raise ModelError(f"dtype {request.dtype} is not supported on the cpu device; use auto, float32 or bfloat16.")
    if request.dtype != BFLOAT16:
        return
    if team is None:
        raise ModelError("dtype bfloat16 needs the native kernels, which are not used here; use auto or float32.")
    if not team.has_pair_products:
        raise ModelError("dtype bfloat16 needs a processor with AVX512_BF16, which this one lacks; use auto or float32.")
    if request.quantization == "int8":
        raise ModelError("quantization int8 has activations of 8 bits; use it with dtype auto, or dtype bfloat16 without it.")


def refuse_bfloat16(request: LoadRequest, kind: str) -> None:
    """Raise ModelError if a model of this kind, which computes in float32 only, shall compute in bfloat16."""
    if request.dtype == BFLOAT16:
        raise ModelError(f"dtype bfloat16 is not for {kind} on the cpu device; use auto or float32.")


def stays_quantized(request: LoadRequest, weights: WeightLoader) -> bool:
    """Return whether weights are multiplied as quanta: those of the files, or 8 bits."""
    if request.quantization == "int8":
        return True
    return request.dtype not in ("float32", BFLOAT16) and (request.path.suffix == ".gguf" or weights.are_packed)


def choose_matrices(request: LoadRequest, weights: WeightLoader, team: Team) -> MatrixLoader:
    """Return the loader that packs matrices in the requested form."""
    if request.quantization == "int8":
        return FloatMatrices(weights, team, pack_int8)
    if request.dtype == BFLOAT16:
        return FloatMatrices(weights, team, pack_pairs)
    return StoredMatrices(weights, team) if stays_quantized(request, weights) else FloatMatrices(weights, team)


def host_parameters(
    request: LoadRequest, weights: WeightLoader, team: Team | None, *, keeps_experts: bool = False
) -> HostParameters:
    """Return the weights of a model that torch runs; with `keeps_experts`, experts stay quantized as in their files."""
    make_linear: LinearFactory = PackedLinear if can_pack() else PlainLinear
    if team is not None and request.dtype == BFLOAT16:
        return PairParameters(weights, make_linear, team)
    if team is not None and keeps_experts and stays_quantized(request, weights):
        return QuantizedParameters(weights, make_linear, team)
    return HostParameters(weights, make_linear)


def choose_kv_dtype(configured: str, request: LoadRequest, weights: WeightLoader) -> torch.dtype:
    """Return the type of keys and values: the configured type, or for "auto" the smallest type with a negligible error.

    With dtype bfloat16 that is float16: as large, and rounded eight times as finely.

    With quantized weights, int8 keys and values add less error than the weights' quantization did. The exception is a key with
    some dimensions far larger than their neighbours, which share a scale with them. Biases and norms of keys cause such
    dimensions: a bias of Qwen2.5-0.5B is 480 times the median one, and int8 changes its answers. Those models use float16.
    """
    if configured != "auto":
        return _KV_DTYPES[configured]
    if request.dtype == BFLOAT16:
        return torch.float16
    if not stays_quantized(request, weights):
        return torch.float32
    return torch.float16 if _scales_keys_unevenly(weights) else torch.int8


def _scales_keys_unevenly(weights: WeightLoader) -> bool:
    return any(weights.has(f"model.layers.0.self_attn.{name}") for name in ("k_proj.bias", "k_norm.weight"))
