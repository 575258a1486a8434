"""Quantization at load: rounds each matrix of weights that are stored in floats to fewer bits when it is read.

The output layer, the embedding and the routers of experts stay floats: they are few, and rounding them changes every token. A
rank that has some columns of a matrix reads whole rows, so that its scales are those of a model on one rank.
"""

from collections.abc import Callable, Mapping

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.quantization.context import ProductContext
from tetrad.worker_svc.quantization.fp8 import quantize_fp8
from tetrad.worker_svc.quantization.int4 import group_for_int4, quantize_int4
from tetrad.worker_svc.quantization.int8 import quantize_int8
from tetrad.worker_svc.quantization.matrix import Matrix
from tetrad.worker_svc.quantization.plain import PlainForm, PlainScheme

_KEPT = ("lm_head", "model.embed_tokens", "model.embed_positions", ".router", ".shared_expert_gate")


class OnlineScheme:
    """A Scheme that quantizes the matrices that `plain` reads.

    Args:
        plain: reads the floats.
        kind: one of ONLINE.
    """

    def __init__(self, plain: PlainScheme, kind: str) -> None:
        self._plain, self._quantize = plain, ONLINE[kind]

    def read(self, weights: WeightLoader, name: str, rows: int, columns: int) -> Matrix:
        """See Scheme."""
        if name.endswith(_KEPT):
            return self._plain.read(weights, name, rows, columns)
        weight, own = weights.get_rows(f"{name}.weight", (rows, columns))
        context = self._plain.context
        return self._quantize(context, weight.to(context.device).to(context.dtype), own)


def _int4(context: ProductContext, weight: torch.Tensor, own: slice) -> Matrix:
    group = group_for_int4(weight.shape[1])
    return quantize_int4(context, weight, group, own) if group else Matrix(PlainForm(), (weight[:, own],))


ONLINE: Mapping[str, Callable[[ProductContext, torch.Tensor, slice], Matrix]] = {
    "int8": quantize_int8,
    "int4": _int4,
    "fp8": quantize_fp8,
}
"""The quantization methods that may be requested, and functions that quantize whole rows and return some of their columns."""
