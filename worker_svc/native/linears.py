"""Native linears: products for models that torch runs, each a native program of one operation.

Matrices of quantized experts stay quantized; their inputs are rounded to 8 bits as in native programs. Inputs of other matrices
are not, because states accumulate the errors of rounding. With dtype bfloat16, all matrices are in bfloat16, but for those that
choose experts.
"""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.source import QuantizedMatrix
from tetrad.worker_svc.layers.linear import Linear, LinearFactory, SideBySide
from tetrad.worker_svc.layers.parameters import CHOOSING, HostParameters
from tetrad.worker_svc.native.matrix_loaders import KINDS, join_stored, pack_stored
from tetrad.worker_svc.native.program import Room
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.structures import Heads
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix, pack_pairs

_NO_HEADS = Heads(1, 1, 16, 1, 0)
_FLOAT32_BYTES = 4
_EXPERTS = ".experts."
"""Part of the names of the matrices that stay quantized; they are nearly all weights of a mixture of experts."""


class NativeLinear:
    """A linear layer that runs as a native program; see Linear.

    Args:
        team: the threads that run the program.
        room: memory for converted inputs.
        matrix: the packed weights.
        bias: [out], or None.
    """

    def __init__(self, team: Team, room: Room, matrix: NativeMatrix, bias: torch.Tensor | None) -> None:
        builder = ProgramBuilder(team)
        builder.linear(matrix, bias, builder.buffer(matrix.fields.columns), builder.buffer(matrix.num_outputs))
        self._program, self._room, self._num_outputs = builder.build("linear", _NO_HEADS), room, matrix.num_outputs

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, out_features] of inputs [T, in_features]."""
        out = x.new_empty(len(x), self._num_outputs)
        self._program.run_on([x.contiguous(), out], self._room)
        return out


class QuantizedParameters(HostParameters):
    """Weights in host memory: experts that are quantized in the files stay quantized, all other matrices are in float32.

    Args:
        weights: loads the model's tensors.
        make_linear: packs matrices in float32.
        team: the threads that pack and multiply the quantized matrices.

    Attributes:
        saved_bytes: see HostParameters.
    """

    def __init__(self, weights: WeightLoader, make_linear: LinearFactory, team: Team) -> None:
        super().__init__(weights, make_linear)
        self._team, self._room = team, Room()

    def linear(
        self,
        names: Sequence[tuple[str, int]],
        in_features: int,
        *,
        rotated: Sequence[bool] | None = None,
        head_dim: int = 0,
        rotary_dim: int | None = None,
    ) -> Linear:
        """See Parameters."""
        if not all(_EXPERTS in name for name, _ in names):
            return super().linear(names, in_features, rotated=rotated, head_dim=head_dim, rotary_dim=rotary_dim)
        shapes = {f"{name}.weight": (size, in_features) for name, size in names}
        stored = [self._weights.get_quantized(name, shape, KINDS) for name, shape in shapes.items()]
        known = [matrix for matrix in stored if matrix is not None]
        if len(known) == len(names) and len({matrix.form for matrix in known}) == 1:
            return self._native(names, join_stored(known))
        in_floats = super().linear  # super() has no object inside a comprehension
        parts = [
            in_floats([part], in_features) if matrix is None else self._native([part], matrix)
            for part, matrix in zip(names, stored, strict=True)
        ]
        return parts[0] if len(parts) == 1 else SideBySide(parts)

    def _native(self, names: Sequence[tuple[str, int]], stored: QuantizedMatrix) -> Linear:
        biases = [self._bias(name, size) for name, size in names]
        filled = [torch.zeros(size) if bias is None else bias for (_, size), bias in zip(names, biases, strict=True)]
        matrix = pack_stored(self._team, stored)
        self.saved_bytes += _saved_bytes(matrix)
        return NativeLinear(self._team, self._room, matrix, None if all(b is None for b in biases) else torch.cat(filled))


class PairParameters(HostParameters):
    """Weights in host memory: matrices in bfloat16, but for those that choose experts; tables and vectors in float32.

    Args:
        weights: loads the model's tensors.
        make_linear: packs matrices in float32.
        team: the threads that pack and multiply the matrices in bfloat16.

    Attributes:
        saved_bytes: see HostParameters.
    """

    def __init__(self, weights: WeightLoader, make_linear: LinearFactory, team: Team) -> None:
        super().__init__(weights, self._make_pairs)
        self._floats = HostParameters(weights, make_linear)
        self._team, self._room = team, Room()

    def linear(
        self,
        names: Sequence[tuple[str, int]],
        in_features: int,
        *,
        rotated: Sequence[bool] | None = None,
        head_dim: int = 0,
        rotary_dim: int | None = None,
    ) -> Linear:
        """See Parameters."""
        chooses = any(name.endswith(CHOOSING) for name, _ in names)
        load = self._floats.linear if chooses else super().linear
        return load(names, in_features, rotated=rotated, head_dim=head_dim, rotary_dim=rotary_dim)

    def _make_pairs(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        matrix = pack_pairs(self._team, weight)
        self.saved_bytes += _saved_bytes(matrix)
        return NativeLinear(self._team, self._room, matrix, bias)


def _saved_bytes(matrix: NativeMatrix) -> int:
    size_bytes: int = matrix.fields.rows * matrix.fields.columns * _FLOAT32_BYTES
    return size_bytes - matrix.size_bytes
