"""AWQ checkpoints: Lin et al., "AWQ: Activation-aware Weight Quantization" (2023), as AutoAWQ's version "gemm" stores them.

The transposed matrix [C, R] is stored in 4 bits, eight columns per word, shuffled: `qweight` [C, R / 8] int32, `qzeros`
[C / G, R / 8] int32, `scales` [C / G, R]; w = (q - zero) * scale.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.worker_svc.checkpoint.loader import FLOATS, WeightLoader
from tetrad.worker_svc.kernels.int4_matmul import pack_int4
from tetrad.worker_svc.model_facts.quantization import check_groups, choose, group_size_of
from tetrad.worker_svc.quantization.int4 import Int4Form
from tetrad.worker_svc.quantization.matrix import Matrix
from tetrad.worker_svc.quantization.plain import PlainScheme

_PER_WORD = 8
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Places of eight columns in a word, in units of 4 bits from the lowest."""


class AwqScheme:
    """The Scheme of AWQ checkpoints.

    Args:
        config: the quantization_config.
        plain: reads matrices that are not quantized.
    """

    def __init__(self, config: Mapping[str, Any], plain: PlainScheme) -> None:
        choose(config, "bits", [4])
        choose(config, "version", ["gemm", "GEMM"], default="gemm")
        choose(config, "zero_point", [True], default=True)
        self._group = group_size_of(config)
        self._plain = plain

    def read(self, weights: WeightLoader, name: str, rows: int, columns: int) -> Matrix:
        """See Scheme."""
        if not weights.has(f"{name}.qweight"):
            return self._plain.read(weights, name, rows, columns)
        context, group = self._plain.context, self._group or columns
        check_groups(f"{name}.qweight", rows, columns, group, _PER_WORD)
        words, count, ints = rows // _PER_WORD, columns // group, [torch.int32]
        quanta = weights.get_stored(f"{name}.qweight", (columns, words), dtypes=ints, num_parameters=rows * columns)
        zeros = weights.get_stored(f"{name}.qzeros", (count, words), dtypes=ints, num_parameters=0)
        scales = weights.get_stored(f"{name}.scales", (count, rows), dtypes=FLOATS, num_parameters=0)
        packed = pack_int4(_unshuffled(quanta.to(context.device)).T)
        return Matrix(Int4Form(context, group), (packed, scales.to(context.device).T, _unshuffled(zeros.to(context.device)).T))


def _unshuffled(words: torch.Tensor) -> torch.Tensor:
    """Return the values [A, B * 8] uint8 of words [A, B] int32."""
    return torch.stack([(words >> 4 * place & 15).to(torch.uint8) for place in _PLACES], 2).flatten(1)
