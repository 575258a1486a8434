"""LoRA layers on the device: linear layers and lookups that add the changes of their rows' adapters with the grouped kernels.

All adapters are in one buffer, with one slot for each; a product reads its two matrices of all slots as strided views of it.
"""

from collections.abc import Callable, Sequence

import torch

from tetrad.worker_svc.cuda.lora_rows import AdaptedRows
from tetrad.worker_svc.kernels.lora import expand, output_tiles, shrink
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.parameters import Lookup

CurrentRows = Callable[[], AdaptedRows | None]
"""Function that returns the adapters of the next computed rows; None: no row has an adapter."""


class AdaptedProduct:
    """The adapters' changes of one linear layer with P modules, or of a table of embeddings.

    Attributes:
        parts: canonical names of the modules, and their numbers of outputs.
        inputs: K, the number of inputs; for a table, its number of rows.
        size: number of values in a slot: A [P, R, K], or [K, R] for a table, then B [N, R].

    Args:
        rank: R.
        rows: returns the adapters of the current step's rows.
    """

    def __init__(
        self, parts: Sequence[tuple[str, int]], inputs: int, rank: int, rows: CurrentRows, *, is_table: bool = False
    ) -> None:
        self.parts, self.inputs, self.is_table = parts, inputs, is_table
        self._rank, self._rows = rank, rows
        self._num_outputs = sum(size for _, size in parts)
        self._a_size = len(parts) * rank * inputs
        self.size = self._a_size + self._num_outputs * rank
        self._a = self._b = self._tiles = torch.empty(0)

    def place(self, slots: torch.Tensor, first: int) -> None:
        """Set the matrices to views of the buffer [S, values], from column `first` on."""
        a = slots[:, first : first + self._a_size]
        shape = (self.inputs, self._rank) if self.is_table else (len(self.parts) * self._rank, self.inputs)
        self._a = a.view(len(slots), *shape)
        self._b = slots[:, first + self._a_size : first + self.size].view(len(slots), self._num_outputs, self._rank)
        tiles = output_tiles([size for _, size in self.parts])
        self._tiles = torch.tensor(tiles, dtype=torch.int32, device=slots.device)

    def pack(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor] | None]) -> torch.Tensor:
        """Return the values of a slot [size] float32 from A [rank, K] and B [outputs, rank] of each module; None: no change."""
        packed = torch.zeros(self.size)
        b_rows, first = packed[self._a_size :].view(self._num_outputs, self._rank), 0
        for index, (pair, (_, size)) in enumerate(zip(pairs, self.parts, strict=True)):
            if pair is not None:
                a, b = pair
                if self.is_table:
                    packed[: self._a_size].view(self.inputs, self._rank)[:, : len(a)] = a.T
                else:
                    packed[: self._a_size].view(-1, self._rank, self.inputs)[index, : len(a)] = a
                b_rows[first : first + size, : len(a)] = b
            first += size
        return packed

    def add_to(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add the changes of rows x [T, K], or of a table's ids x [T], to y [T, N] in place; return y."""
        rows = self._rows()
        if rows is None:
            return y
        shrunk = self._a_rows(rows, x) if self.is_table else shrink(x, self._a, rows.groups)
        return expand(shrunk, self._b, self._tiles, rows.groups, y)

    def _a_rows(self, rows: AdaptedRows, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of A [1, T, R] for ids [T]; the values of rows without an adapter are not used."""
        return self._a[rows.slots.clamp(min=0), token_ids].float()[None]


class AdaptedLayer:
    """A linear layer or a lookup with the changes of its rows' adapters: rows [T, K], or ids [T] -> [T, N]."""

    def __init__(self, base: Linear | Lookup, product: AdaptedProduct) -> None:
        self._base, self._product = base, product

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output [T, N] with the adapters' changes."""
        return self._product.add_to(self._base(x), x)
