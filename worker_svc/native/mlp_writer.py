"""MlpWriter: writes the MLP of a decoder layer into a native program.

The matrices that read the layer's input are loaded before the norm is written, because the norm quantizes its output if the
matrices are quantized.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tetrad.worker_svc.native.branch_writer import BranchWriter, Input
from tetrad.worker_svc.native.operands import Adapted, Epilogue
from tetrad.worker_svc.native.weights import NativeMatrix


class _Inner(NamedTuple):
    """The first product of an MLP: up, or gate and up."""

    matrix: NativeMatrix
    bias: torch.Tensor | None
    adapted: Adapted


class MlpWriter:
    """Writes the MLP of one layer.

    Args:
        branches: writes the branches of the program.
        prefix: prefix of the names of the MLP's tensors.
        size: intermediate size.
    """

    def __init__(self, branches: BranchWriter, prefix: str, size: int) -> None:
        self._branches, self._prefix, self._size = branches, prefix, size
        self._inner = _load_inner(branches, prefix, size)

    @property
    def matrices(self) -> Sequence[NativeMatrix]:
        """The matrices that read the layer's input."""
        return [self._inner.matrix]

    def write(self, source: Input) -> None:
        """Write the MLP's computation on an input, and the addition of its output to the residual stream."""
        gated = self._branches.buffers.gated
        self.write_inner(source, gated)
        self._branches.write_output(f"{self._prefix}.down_proj", f"{self._prefix}.output_norm", gated, self._size)

    def write_inner(self, source: Input, target: int) -> None:
        """Write the first product and the activation: the input of the last product."""
        config, inner = self._branches.config, self._inner
        self._branches.program.linear(
            inner.matrix,
            inner.bias,
            source.buffer,
            target,
            epilogue=Epilogue.GATE if config.is_gated else Epilogue.ACTIVATE,
            activation=config.activation,
            is_prepared=source.is_prepared,
            adapted=inner.adapted,
        )

    def write_down(self, source: int, target: int) -> None:
        """Write the last product, without an addition to the residual stream."""
        branches, name, hidden = self._branches, f"{self._prefix}.down_proj", self._branches.config.hidden_size
        matrix, bias = branches.parameters.product(name, hidden, self._size), branches.parameters.bias((name, hidden))
        branches.program.linear(matrix, bias, source, target, adapted=branches.sites.add([(name, hidden)], self._size))


def _load_inner(branches: BranchWriter, prefix: str, size: int) -> _Inner:
    parameters, hidden, is_gated = branches.parameters, branches.config.hidden_size, branches.config.is_gated
    gate, up = (f"{prefix}.gate_proj", size), (f"{prefix}.up_proj", size)
    names = [gate, up] if is_gated else [up]
    matrix = parameters.pair(gate[0], up[0], size, hidden) if is_gated else parameters.product(up[0], size, hidden)
    return _Inner(matrix, parameters.bias(*names), branches.sites.add(names, hidden, is_paired=is_gated))
