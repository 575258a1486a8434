"""Quantization at load: rounds each matrix of weights that are stored in floats to fewer bits when it is read.

The output layer, the embedding and the routers of experts stay floats: they are few, and rounding them changes every token.
"""

from collections.abc import Callable, Mapping

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.quantization.fp8 import quantize_fp8
from tetrad.worker_svc.quantization.int4 import group_for_int4, quantize_int4
from tetrad.worker_svc.quantization.int8 import quantize_int8
from tetrad.worker_svc.quantization.matrix import Matrix
from tetrad.worker_svc.quantization.plain import PlainScheme

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
        matrix = self._plain.read(weights, name, rows, columns)
        return matrix if name.endswith(_KEPT) else self._quantize(self._plain, matrix)


def _int8(plain: PlainScheme, matrix: Matrix) -> Matrix:
    return quantize_int8(plain.context, *matrix.tensors)


def _int4(plain: PlainScheme, matrix: Matrix) -> Matrix:
    [weight] = matrix.tensors
    group = group_for_int4(weight.shape[1])
    return quantize_int4(plain.context, weight, group) if group else matrix


def _fp8(plain: PlainScheme, matrix: Matrix) -> Matrix:
    return quantize_fp8(plain.context, *matrix.tensors)


ONLINE: Mapping[str, Callable[[PlainScheme, Matrix], Matrix]] = {"int8": _int8, "int4": _int4, "fp8": _fp8}
"""The quantization methods that may be requested, and their functions."""
