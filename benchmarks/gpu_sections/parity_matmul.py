"""Parity of products with quantized weights: compares them with float64 products of the dequantized weights.

With fp8 weights and more than a few rows, activations are quantized too; then the exact product uses dequantized activations.
"""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.matrices import FORMS, QWEN_SHAPES, TINY_SHAPES, linear_of, random_weight, widened
from benchmarks.gpu_sections.parity_case import Case
from tetrad.worker_svc.kernels.quantize_rows import quantize_rows
from tetrad.worker_svc.quantization.context import product_context
from tetrad.worker_svc.quantization.fp8 import FEW_ROWS


def cases(bench: Bench) -> Iterator[Case]:
    """Yield the cases."""
    for form in FORMS:
        for name in bench.pick(("down", "qkv"), ("qkv",)):
            for num_rows in bench.pick((1, 33, 1000), (3,)):
                yield Case(f"{form} product", f"{name}, {num_rows} rows", partial(_product, bench, form, name, num_rows))


def _product(bench: Bench, form: str, name: str, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.bfloat16 if bench.is_gpu else torch.float32
    context = product_context(bench.device, dtype)
    shape = bench.pick(QWEN_SHAPES, TINY_SHAPES)[name]
    matrix = FORMS[form](context, random_weight(bench, shape, dtype))
    x = bench.normal(num_rows, shape[1], dtype=dtype, seed=2)
    exact_x = x.double()
    if form == "fp8" and num_rows > FEW_ROWS and context.has_fp8:
        quantized, scales = quantize_rows(x, shape[1])
        exact_x = quantized.double() * scales.double().T
    return linear_of(matrix)(x), exact_x @ widened(form, matrix).T
