"""Matrix loaders: from a model's files to packed matrices, in float32, in the file's own quanta, or in 8 bits."""

from collections.abc import Callable, Sequence

import gguf
import numpy as np
import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.source import QuantizedTensor
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import GGUF_FORMATS, NativeMatrix, pack_float, pack_gguf, pack_int8

_PackFloats = Callable[..., NativeMatrix]


class FloatMatrices:
    """Everything is read in float32 and packed as it is, or in 8 bits.

    Args:
        weights: of the model.
        team: that packs.
        pack: pack_float or pack_int8.
    """

    def __init__(self, weights: WeightLoader, team: Team, pack: _PackFloats = pack_float) -> None:
        self._weights, self._team, self._pack = weights, team, pack

    def load(self, names: Sequence[tuple[str, int]], columns: int, *, paired: bool = False) -> list[NativeMatrix]:
        """See MatrixLoader."""
        parts = [self._weights.get(name, (rows, columns)) for name, rows in names]
        return [self._pack(self._team, parts[0] if len(parts) == 1 else torch.cat(parts), paired=paired)]


class StoredMatrices:
    """What a GGUF file has quantized stays so; see MatrixLoader.

    Args:
        weights: of the model.
        team: that packs.
    """

    def __init__(self, weights: WeightLoader, team: Team) -> None:
        self._weights, self._team = weights, team
        self._floats = FloatMatrices(weights, team)

    def load(self, names: Sequence[tuple[str, int]], columns: int, *, paired: bool = False) -> list[NativeMatrix]:
        """See MatrixLoader; a pair of different formats is read in float32 and quantized to 8 bits."""
        stored = [self._weights.get_quantized(name, (rows, columns), _KINDS) for name, rows in names]
        kinds = {None if part is None else part.kind for part in stored}
        if len(kinds) == 1 and None not in kinds:
            return [pack_gguf(self._team, _joined([part for part in stored if part is not None]), paired=paired)]
        if kinds == {None}:
            return self._floats.load(names, columns, paired=paired)
        if paired:
            parts = [
                self._weights.get(name, (rows, columns)) if part is None else _dequantized(part)
                for (name, rows), part in zip(names, stored, strict=True)
            ]
            return [pack_int8(self._team, torch.cat(parts), paired=True)]
        return [
            self._floats.load([name], columns)[0] if part is None else pack_gguf(self._team, part)
            for name, part in zip(names, stored, strict=True)
        ]


_KINDS = frozenset(int(kind) for kind in GGUF_FORMATS)


def _dequantized(tensor: QuantizedTensor) -> torch.Tensor:
    return torch.from_numpy(gguf.dequantize(tensor.rows, gguf.GGMLQuantizationType(tensor.kind)))


def _joined(parts: Sequence[QuantizedTensor]) -> QuantizedTensor:
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    return QuantizedTensor(parts[0].kind, (len(rows), parts[0].shape[1]), rows)
