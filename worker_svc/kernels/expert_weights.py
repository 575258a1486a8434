"""Expert weights: the matrices of one product of all experts of a layer, in floats or quantized.

Dims: E experts, O outputs, K inputs, G columns of a group, Q = ceil(K / G) groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tetrad.worker_svc.kernels.int4_matmul import unpack_int4


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """The matrices of all experts, or, without the first dimension of each tensor, the matrix of one expert.

    A weight is scale * (value - zero), or, with a table, scale * table[value].

    Attributes:
        values: [E, O, K] floats, int8, or uint8 (e4m3's bits); of 4 bits: [E, O, K / 2] uint8 (see pack_int4).
        bias: [E, O] floats; None: no bias.
        scales: [E, Q, O] floats; None: the values are the weights.
        zeros: [E, Q, O] uint8, for values of 4 bits; None: no zeros.
        table: [16] floats in the activations' type, which all experts share, for values of 4 bits; None: no table.
        group: G; K: one scale per row.
        has_fp8: whether the device can convert e4m3; if not, the kernel converts its bits.
    """

    values: torch.Tensor
    bias: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    table: torch.Tensor | None = None
    group: int = 0
    has_fp8: bool = False

    @property
    def has_4_bits(self) -> bool:
        """Whether two values share a byte."""
        return self.zeros is not None or self.table is not None

    @property
    def num_columns(self) -> int:
        """K."""
        return self.values.shape[-1] * (2 if self.has_4_bits else 1)

    @property
    def kind(self) -> object:
        """The properties that the matrices of a stack share."""
        table = None if self.table is None else tuple(self.table.tolist())
        tensors = (self.values, self.bias, self.scales, self.zeros)
        return *(None if each is None else (each.shape, each.dtype) for each in tensors), table, self.group

    def dequantized(self, expert: int) -> torch.Tensor:
        """Return the weights [O, K] of an expert of a stack in float32."""
        values = self.values[expert]
        if self.scales is None:
            return values.float()
        if values.dtype == torch.uint8:
            values = unpack_int4(values) if self.has_4_bits else values.view(torch.float8_e4m3fn)
        groups = torch.arange(self.num_columns, device=values.device) // self.group
        wide = values.float() if self.table is None else self.table.float()[values.int()]
        if self.zeros is not None:
            wide = wide - self.zeros[expert].T[:, groups].float()
        return wide * self.scales[expert].T[:, groups].float()


def stacked(experts: Sequence[ExpertWeights]) -> ExpertWeights | None:
    """Stack the matrices of experts; return None if their kinds differ.

    The tensors of the experts become views of the stack, and their own memory is freed. Scales of different types become
    float32: a matrix has scales of two bytes if its values are exact in them.
    """
    if len({each.scales.dtype for each in experts if each.scales is not None}) > 1:
        experts = [each if each.scales is None else replace(each, scales=each.scales.float()) for each in experts]
    if len({each.kind for each in experts}) > 1:
        return None
    return replace(
        experts[0],
        values=_stack([each.values for each in experts]),
        bias=_stack_all([each.bias for each in experts]),
        scales=_stack_all([each.scales for each in experts]),
        zeros=_stack_all([each.zeros for each in experts]),
    )


def _stack_all(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    known = [tensor for tensor in tensors if tensor is not None]
    return _stack(known) if known else None


def _stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    stack = torch.stack(list(tensors))
    for tensor, row in zip(tensors, stack, strict=True):
        tensor.set_(row)
    return stack
