"""Rates of products: a layer's four matrices in bf16 (torch's own products) and in every quantized form, against the floors.

A layer's floor is the larger of two times: reading its matrices as they are stored, and multiplying at the rate of a large bf16
product. A share above 1 means that fp8 is faster than bf16 can be.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.floors import Floors
from benchmarks.gpu_sections.matrices import FORMS, QWEN_SHAPES, TINY_SHAPES, linear_of, random_weight
from tetrad.worker_svc.quantization.context import ProductContext, product_context

_L2_BYTES = 100 << 20
_RESERVE_S = 8.0
Product = Callable[[torch.Tensor], torch.Tensor]


def run(bench: Bench, floors: Floors, findings: Findings) -> None:
    """Add the table."""
    dtype = torch.bfloat16 if bench.is_gpu else torch.float32
    context = product_context(bench.device, dtype)
    shapes = bench.pick(QWEN_SHAPES, TINY_SHAPES)
    rows = []
    for num_rows in bench.pick([1, 32, 128, 4096], [2]):
        for form in ("bf16", *FORMS):
            if bench.remaining_s < _RESERVE_S:
                findings.skip(f"rates of {form} products of {num_rows} rows", "the section's time was over")
                continue
            times, floor_s = [], 0.0
            for shape in shapes.values():
                products, num_bytes = _products(bench, context, form, shape)
                x = bench.normal(num_rows, shape[1], dtype=dtype, seed=2)
                times.append(bench.seconds([partial(product, x) for product in products]))
                floor_s += max(floors.bytes_s(num_bytes), floors.flops_s(2 * num_rows * shape[0] * shape[1]))
            cells = [f"{seconds * 1e6:.1f}" for seconds in (*times, sum(times))]
            rows.append([str(num_rows), form, *cells, f"{floor_s / sum(times):.2f}"])
    findings.text("Products of a layer, microseconds; share: of the layer's floor.")
    findings.rows(["rows", "weights", *shapes, "layer", "share"], rows)


def _products(bench: Bench, context: ProductContext, form: str, shape: tuple[int, int]) -> tuple[list[Product], int]:
    """Return copies of the product with separate weights, more than the card's L2 can hold, and the bytes of one copy."""
    weight = random_weight(bench, shape, context.dtype)
    if form == "bf16":
        copies = _copies(bench, weight.nbytes)
        return [partial(F.linear, weight=weight.clone()) for _ in range(copies)], weight.nbytes
    matrix = FORMS[form](context, weight)
    num_bytes = sum(tensor.nbytes for tensor in matrix.tensors)
    return [linear_of(matrix) for _ in range(_copies(bench, num_bytes))], num_bytes


def _copies(bench: Bench, num_bytes: int) -> int:
    return bench.pick(1 + _L2_BYTES // num_bytes, 1)
