"""Matrix loaders: read a model's matrices and pack them, in the files' floats or quanta, in 8 bits, or in bfloat16."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.packed_weights.grouped import GroupedMatrix, joined
from tetrad.worker_svc.checkpoint.source import QuantizedMatrix, QuantizedTensor
from tetrad.worker_svc.native.formats import GGUF_FORMATS
from tetrad.worker_svc.native.grouped_weights import pack_grouped
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix, pack_float, pack_gguf, pack_int8

_PackFloats = Callable[..., NativeMatrix]


class FloatMatrices:
    """A MatrixLoader that reads floats, and packs them in their type, in 8 bits or in bfloat16.

    Args:
        weights: loads the model's tensors.
        team: the threads that pack.
        pack: pack_float, pack_int8 or pack_pairs.
    """

    def __init__(self, weights: WeightLoader, team: Team, pack: _PackFloats = pack_float) -> None:
        self._weights, self._team, self._pack = weights, team, pack

    def load(self, names: Sequence[tuple[str, int]], columns: int, *, paired: bool = False) -> list[NativeMatrix]:
        """See MatrixLoader."""
        parts = [self._weights.get_stored(name, (rows, columns)) for name, rows in names]
        return [self._pack(self._team, parts[0] if len(parts) == 1 else torch.cat(parts), paired=paired)]

    def load_plain(self, name: str, rows: int, columns: int) -> NativeMatrix:
        """See MatrixLoader."""
        return pack_float(self._team, self._weights.get_stored(name, (rows, columns)))


class StoredMatrices:
    """A MatrixLoader that keeps quantized matrices quantized as in the files.

    Args:
        weights: loads the model's tensors.
        team: the threads that pack.
    """

    def __init__(self, weights: WeightLoader, team: Team) -> None:
        self._weights, self._team = weights, team
        self._floats = FloatMatrices(weights, team)

    def load(self, names: Sequence[tuple[str, int]], columns: int, *, paired: bool = False) -> list[NativeMatrix]:
        """See MatrixLoader; a pair with different formats is read in float32 and quantized to 8 bits."""
        stored = [self._weights.get_quantized(name, (rows, columns), KINDS) for name, rows in names]
        known = [part for part in stored if part is not None]
        if not known:
            return self._floats.load(names, columns, paired=paired)
        if len(known) == len(stored) and len({part.form for part in known}) == 1:
            return [pack_stored(self._team, join_stored(known), paired=paired)]
        if paired:
            parts = [
                self._weights.get(name, (rows, columns)) if part is None else part.dequantized()
                for (name, rows), part in zip(names, stored, strict=True)
            ]
            return [pack_int8(self._team, torch.cat(parts), paired=True)]
        return [
            self._floats.load([name], columns)[0] if part is None else pack_stored(self._team, part)
            for name, part in zip(names, stored, strict=True)
        ]

    def load_plain(self, name: str, rows: int, columns: int) -> NativeMatrix:
        """See MatrixLoader."""
        return self._floats.load_plain(name, rows, columns)


KINDS = frozenset(int(kind) for kind in GGUF_FORMATS)
"""GGUF's numbers of the types that stay quantized."""


def pack_stored(team: Team, matrix: QuantizedMatrix, *, paired: bool = False) -> NativeMatrix:
    """Pack a quantized matrix with the quanta of the files."""
    if isinstance(matrix, GroupedMatrix):
        return pack_grouped(team, matrix, paired=paired)
    return pack_gguf(team, matrix, paired=paired)


def join_stored(parts: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Concatenate the rows of matrices of the same form."""
    if len(parts) == 1:
        return parts[0]
    grouped = [part for part in parts if isinstance(part, GroupedMatrix)]
    if grouped:
        return joined(grouped)
    tensors = [part for part in parts if isinstance(part, QuantizedTensor)]
    rows = np.concatenate([part.rows for part in tensors])
    return QuantizedTensor(tensors[0].kind, (len(rows), tensors[0].shape[1]), rows)
