"""LoRA in torch: adds the low-rank changes of each row's adapter to the outputs of linear layers and embeddings.

While a model is built, AdaptedParameters wraps each layer that adapters may change, through the device's AdaptedLayers. On the
host, this is LoraRows: it computes the rows of one adapter together, and skips rows without an adapter.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.checkpoint.lora_weights import LoraPair, LoraWeights
from tetrad.worker_svc.core.lora import LoraSite, PackedLora
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.parameters import CHOOSING, Lookup, Parameters
from tetrad.worker_svc.layers.rotary import interleave_heads

_OF_EXPERTS = ".experts."
"""Part of the canonical names of experts' layers, whose rows are only the tokens that chose the expert."""
LoraReader = Callable[[Path, Mapping[str, LoraSite]], LoraWeights]


class AdaptedLayers(Protocol):
    """Wraps the layers of a model for its adapters.

    Attributes:
        sites: the modules that adapters may change, by canonical name.
        orders: functions that reorder B's rows, for modules whose row order differs from the files'.
    """

    sites: dict[str, LoraSite]
    orders: dict[str, Callable[[torch.Tensor], torch.Tensor]]

    def linear(self, base: Linear, parts: Sequence[tuple[str, int]]) -> Linear:
        """Return a linear layer of modules (canonical names and numbers of outputs, in order) with the adapters' changes."""

    def lookup(self, base: Lookup, name: str) -> Lookup:
        """Return the lookup in a table of embeddings with the adapters' changes."""


@dataclass(frozen=True, slots=True)
class TorchLora:
    """An adapter in the form for torch.

    Attributes:
        digest: SHA-256 digest of its files.
        pairs: for each canonical name a [rank, inputs] and b [outputs, rank] in float32, with the scale included and rows of
            queries and keys in this device's order.
    """

    digest: bytes
    pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]


class LoraRows:
    """The installed adapters, and the rows of each in the next computation; see ModelLoras and AdaptedLayers.

    Args:
        read: reads an adapter's directory; takes the modules that adapters may change.
    """

    def __init__(self, read: LoraReader) -> None:
        self._read = read
        self.sites: dict[str, LoraSite] = {}
        self.orders: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        self._installed: dict[int, TorchLora] = {}
        self.selected: Sequence[tuple[TorchLora, torch.Tensor]] = ()  # adapters, and the rows [n] of each
        self._ids: Ints = np.zeros(0, np.int64)  # adapter id of each row

    def linear(self, base: Linear, parts: Sequence[tuple[str, int]]) -> Linear:
        """See AdaptedLayers."""
        return AdaptedLinear(base, parts, self)

    def lookup(self, base: Lookup, name: str) -> Lookup:
        """See AdaptedLayers."""
        return AdaptedLookup(base, name, self)

    def read(self, path: Path) -> TorchLora:
        """See ModelLoras."""
        weights = self._read(path, self.sites)
        pairs = {name: (pair.a.float(), scaled_b(self, name, pair)) for name, pair in weights.pairs.items()}
        return TorchLora(weights.digest, pairs)

    def install(self, lora_id: int, packed: PackedLora) -> None:
        """See ModelLoras."""
        assert isinstance(packed, TorchLora)
        self._installed[lora_id] = packed

    def remove(self, lora_id: int) -> None:
        """See ModelLoras."""
        self._installed.pop(lora_id, None)
        self.selected = ()

    def clear(self) -> None:
        """See ModelLoras."""
        self._installed.clear()
        self.selected = ()

    def has(self, lora_id: int) -> bool:
        """See ModelLoras."""
        return lora_id in self._installed

    def select(self, lora_ids: Ints) -> None:
        """See ModelLoras."""
        self._ids, self.selected = lora_ids, self._selection(lora_ids)

    @contextmanager
    def among(self, rows: torch.Tensor) -> Iterator[None]:
        """Apply adapters to a subset of the selected rows inside the context: rows [n] that chose an expert; see RowScope."""
        selected = self.selected
        if selected:
            self.selected = self._selection(self._ids[rows.numpy()])
        try:
            yield
        finally:
            self.selected = selected

    def _selection(self, lora_ids: Ints) -> Sequence[tuple[TorchLora, torch.Tensor]]:
        ids = np.unique(lora_ids[lora_ids > 0])
        return [(self._installed[each], torch.from_numpy(np.flatnonzero(lora_ids == each))) for each in ids.tolist()]


class AdaptedLinear:
    """A linear layer of one or several modules with the changes of its rows' adapters.

    Args:
        base: the layer.
        parts: canonical names and numbers of outputs of the modules, in order.
        rows: the adapters and their rows.
    """

    def __init__(self, base: Linear, parts: Sequence[tuple[str, int]], rows: LoraRows) -> None:
        self._base, self._rows = base, rows
        ends = np.cumsum([size for _, size in parts]).tolist()
        self._parts = [(name, slice(end - size, end)) for (name, size), end in zip(parts, ends, strict=True)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs [T, outputs] of x, with the adapters' changes."""
        y = self._base(x)
        for lora, rows in self._rows.selected:
            found = [(lora.pairs[name], part) for name, part in self._parts if name in lora.pairs]
            if found:
                its = x[rows]
                for (a, b), part in found:
                    y[rows, part] += (its @ a.T) @ b.T
        return y


class AdaptedLookup:
    """A lookup in a table with the changes of the rows' adapters.

    Args:
        base: returns rows of the table [vocabulary, outputs].
        name: canonical name of the table.
        rows: the adapters and their rows.
    """

    def __init__(self, base: Lookup, name: str, rows: LoraRows) -> None:
        self._base, self._name, self._rows = base, name, rows

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the rows [T, outputs] of ids [T], with the adapters' changes."""
        found = self._base(token_ids)
        for lora, rows in self._rows.selected:
            pair = lora.pairs.get(self._name)
            if pair is not None:
                a, b = pair
                found[rows] += a.T[token_ids[rows]] @ b.T
        return found


class AdaptedParameters:
    """Parameters whose linear layers and table of token embeddings support adapters.

    Args:
        inner: the weights.
        layers: wraps each module that adapters may change.
        adapts_experts: whether adapters may change experts.
    """

    def __init__(self, inner: Parameters, layers: AdaptedLayers, *, adapts_experts: bool = False) -> None:
        self._inner, self._layers = inner, layers
        self._not_adapted = CHOOSING if adapts_experts else (*CHOOSING, _OF_EXPERTS)

    def has(self, name: str) -> bool:
        """See Parameters."""
        return self._inner.has(name)

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
        base = self._inner.linear(names, in_features, rotated=rotated, head_dim=head_dim, rotary_dim=rotary_dim)
        if any(part in name for name, _ in names for part in self._not_adapted):
            return base
        for index, (name, size) in enumerate(names):
            self._layers.sites[name] = LoraSite(in_features, size)
            if rotated and rotated[index]:
                self._layers.orders[name] = lambda b: interleave_heads(b, head_dim, rotary_dim)
        return self._layers.linear(base, names)

    def scalar(self, name: str) -> float:
        """See Parameters."""
        return self._inner.scalar(name)

    def vector(self, name: str, size: int) -> torch.Tensor:
        """See Parameters."""
        return self._inner.vector(name, size)

    def constants(self, values: Sequence[float]) -> torch.Tensor:
        """See Parameters."""
        return self._inner.constants(values)

    def embedding(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """See Parameters."""
        return self._inner.embedding(name, rows, columns)

    def lookup(self, name: str, table: torch.Tensor) -> Lookup:
        """See Parameters."""
        self._layers.sites[name] = LoraSite(len(table), table.shape[1], is_table=True)
        return self._layers.lookup(self._inner.lookup(name, table), name)

    def output(self, name: str, table: torch.Tensor | None, rows: int, columns: int) -> Linear:
        """See Parameters."""
        self._layers.sites[name] = LoraSite(columns, rows)
        return self._layers.linear(self._inner.output(name, table, rows, columns), [(name, rows)])


def scaled_b(layers: AdaptedLayers, name: str, pair: LoraPair) -> torch.Tensor:
    """Return a module's B [outputs, rank] in float32, times its scale, with rows in the order of the layer's outputs."""
    b = pair.b.float() * pair.scale
    return layers.orders[name](b) if name in layers.orders else b
