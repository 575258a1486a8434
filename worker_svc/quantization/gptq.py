"""GPTQ checkpoints: Frantar et al., "GPTQ" (2022), in 4 bits or in 8; 8 bits with zeros that are not symmetric become floats.

The transposed matrix [C, R] is stored with several rows per word: `qweight` [C / p, R] int32 of p = 32 / bits values, lowest
first; `qzeros` [C / G, R / p] int32, unchanged (format "gptq_v2") or with one subtracted from each zero, as one number per
word that wraps around ("gptq"); `scales` [C / G, R]; `g_idx` [C] int32, the group of each input. If groups are
not in order ("desc_act"), columns are sorted by group at load, and inputs at each product.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.loader import FLOATS, WeightLoader
from tetrad.worker_svc.kernels.int4_matmul import pack_int4
from tetrad.worker_svc.model_facts.quantization import check_groups, choose, group_size_of
from tetrad.worker_svc.packed_weights.grouped import GroupedMatrix
from tetrad.worker_svc.packed_weights.words import ones
from tetrad.worker_svc.quantization.int4 import Int4Form
from tetrad.worker_svc.quantization.int8 import Int8Form
from tetrad.worker_svc.quantization.matrix import Matrix
from tetrad.worker_svc.quantization.plain import PlainForm, PlainScheme

_SYMMETRIC_ZERO = 128
_INTS = (torch.int32,)


class GptqScheme:
    """The Scheme of GPTQ checkpoints.

    Args:
        config: the quantization_config.
        plain: reads matrices that are not quantized.
    """

    def __init__(self, config: Mapping[str, Any], plain: PlainScheme) -> None:
        self._bits: int = choose(config, "bits", [4, 8])
        stored = choose(config, "checkpoint_format", ["gptq", "gptq_v2", ""], default="gptq")
        self._zero_offset = 0 if stored == "gptq_v2" else ones(self._bits)
        self._group = group_size_of(config)
        self._plain = plain

    def read(self, weights: WeightLoader, name: str, rows: int, columns: int) -> Matrix:
        """See Scheme."""
        if not weights.has(f"{name}.qweight"):
            return self._plain.read(weights, name, rows, columns)
        device, group, per_word = self._plain.context.device, self._group or columns, 32 // self._bits
        check_groups(f"{name}.qweight", rows, columns, group, per_word)
        count, words = columns // group, columns // per_word
        stored = weights.get_stored(f"{name}.qweight", (words, rows), dtypes=_INTS, num_parameters=rows * columns)
        zeros = weights.get_stored(f"{name}.qzeros", (count, rows // per_word), dtypes=_INTS, num_parameters=0)
        scales = weights.get_stored(f"{name}.scales", (count, rows), dtypes=FLOATS, num_parameters=0)
        quanta = self._values(stored.to(device).T)
        zeros = self._values(zeros.to(device) + self._zero_offset).T
        order = self._order(weights, name, columns, group)
        if order is not None:
            quanta = quanta[:, order]
        return self._matrix(group, (quanta, scales.to(device).T, zeros), order)

    def _matrix(
        self, group: int, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], order: torch.Tensor | None
    ) -> Matrix:
        quanta, scales, zeros = tensors
        context = self._plain.context
        if self._bits == 4:
            return Matrix(Int4Form(context, group), (pack_int4(quanta), scales, zeros), order)
        if bool((zeros != _SYMMETRIC_ZERO).any()):
            floats = GroupedMatrix(self._bits, quanta, scales.float(), zeros).dequantized()
            return Matrix(PlainForm(), (floats.to(context.dtype),), order)
        return Matrix(Int8Form(context, group), ((quanta ^ _SYMMETRIC_ZERO).view(torch.int8), scales), order)

    def _values(self, words: torch.Tensor) -> torch.Tensor:
        """Return the values [A, B * p] uint8 of words [A, B] int32."""
        mask = (1 << self._bits) - 1
        return torch.stack([(words >> shift & mask).to(torch.uint8) for shift in range(0, 32, self._bits)], 2).flatten(1)

    def _order(self, weights: WeightLoader, name: str, columns: int, group: int) -> torch.Tensor | None:
        """Return the input of each column such that groups are in order; None if they are in order already."""
        if not weights.has(f"{name}.g_idx"):
            return None
        groups = weights.get_stored(f"{name}.g_idx", (columns,), dtypes=_INTS, num_parameters=0).to(torch.int64)
        in_order = torch.arange(columns) // group
        if torch.equal(groups, in_order):
            return None
        order = groups.argsort(stable=True)
        if not torch.equal(groups[order], in_order):
            raise ModelError(f"Tensor {name}.g_idx does not put {group} columns into each of {columns // group} groups.")
        return order.to(self._plain.context.device)
