"""Matrices: weights of the model's shapes in every form that the CUDA device multiplies with."""

from collections.abc import Callable, Mapping

import torch

from benchmarks.gpu_sections.bench import Bench
from tetrad.worker_svc.kernels.int4_matmul import unpack_int4
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.quantization.context import ProductContext
from tetrad.worker_svc.quantization.fp8 import quantize_fp8
from tetrad.worker_svc.quantization.int4 import quantize_int4
from tetrad.worker_svc.quantization.int8 import quantize_int8
from tetrad.worker_svc.quantization.matrix import Matrix, fused

GROUP = 32
"""Number of columns of an int4 group: the smallest; checkpoints have 128."""
FORMS: Mapping[str, Callable[[ProductContext, torch.Tensor], Matrix]] = {
    "int8": quantize_int8,
    "int4": lambda context, weight: quantize_int4(context, weight, 128 if weight.shape[1] % 128 == 0 else GROUP),
    "fp8": quantize_fp8,
}
"""Form of a quantized matrix -> function that quantizes a weight."""
QWEN_SHAPES: Mapping[str, tuple[int, int]] = {
    "qkv": (2048, 1536),
    "output": (1536, 1536),
    "gate_up": (17_920, 1536),
    "down": (1536, 8960),
}
"""Numbers of outputs and inputs of the products of a layer of Qwen2.5-1.5B."""
TINY_SHAPES: Mapping[str, tuple[int, int]] = {"qkv": (48, 64)}


def random_weight(bench: Bench, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return a random matrix of this shape [N, K] with values from N(0, 0.02)."""
    return (bench.normal(*shape) * 0.02).to(dtype)


def linear_of(matrix: Matrix) -> Linear:
    """Return a linear layer with a copy of the matrix's tensors."""
    whole = fused([matrix])
    return whole.form.linear(tuple(tensor.clone() for tensor in whole.tensors), None)


def widened(name: str, matrix: Matrix) -> torch.Tensor:
    """Return the values of a matrix [R, C], in float64."""
    if name == "int4":
        packed, scales, zeros = matrix.tensors
        quanta = unpack_int4(packed).double()
        size = quanta.shape[1] // scales.shape[1]
        return (quanta - zeros.double().repeat_interleave(size, 1)) * scales.double().repeat_interleave(size, 1)
    quanta, scales = matrix.tensors
    return (quanta.view(torch.float8_e4m3fn) if name == "fp8" else quanta).double() * scales.double()
