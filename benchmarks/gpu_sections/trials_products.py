"""Trials of quantized products: tile shapes for a layer's matrices, for the table worker_svc/kernels/tuned/<gpu>.json."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from benchmarks.gpu_sections.bench import Bench, Work
from benchmarks.gpu_sections.matrices import FORMS, QWEN_SHAPES, TINY_SHAPES, linear_of, random_weight
from benchmarks.gpu_sections.trial import Trial
from tetrad.worker_svc.kernels.tile_shapes import TileShape, candidates, key_of
from tetrad.worker_svc.quantization.context import product_context
from tetrad.worker_svc.quantization.fp8 import FEW_ROWS

TABLE = "tiles"
_L2_BYTES = 100 << 20


def trials(bench: Bench) -> Iterator[Trial]:
    """Yield trials of decode steps and of fp8 first, which have the highest required results."""
    for num_rows in bench.pick((1, 8, 32, 128, 16, 64, 512, 4096), (2,)):
        for form in bench.pick(("fp8", "int4", "int8"), ("int8",)):
            for shape in bench.pick(QWEN_SHAPES, TINY_SHAPES).values():
                yield _trial(bench, form, num_rows, shape)


def _trial(bench: Bench, form: str, num_rows: int, shape: tuple[int, int]) -> Trial:
    dtype = torch.bfloat16 if bench.is_gpu else torch.float32
    kernel = _kernel(form, num_rows)
    # None is torch's own product. For integers, it multiplies widened weights and is never the fastest.
    options = [*candidates(num_rows, *shape), *([None] if form == "fp8" else [])]

    def works(option: TileShape | None) -> Sequence[Work]:
        context = product_context(bench.device, dtype)
        context.shapes.set(kernel, num_rows, *shape, option)
        matrix = FORMS[form](context, random_weight(bench, shape, dtype))
        num_bytes = sum(tensor.nbytes for tensor in matrix.tensors)
        x = bench.normal(num_rows, shape[1], dtype=dtype, seed=2)
        return [partial(linear_of(matrix), x) for _ in range(bench.pick(1 + _L2_BYTES // num_bytes, 1))]

    return Trial(TABLE, key_of(kernel, num_rows, *shape), bench.pick(options, options[:2]), works)


def _kernel(form: str, num_rows: int) -> str:
    """Return the kernel's name in the table, the same that the layers use."""
    return {"int8": "int8", "int4": "int4/128", "fp8": "fp8" if num_rows <= FEW_ROWS else "fp8xfp8"}[form]
