"""Native LoRA: adapters in the layout of src/lora.h, and the selection of an adapter for each row.

The products of a program are numbered sites; an adapter is one table with an entry for each site. Each row has the address of
its table, so rows with different adapters and rows of the base model run in one pass, and a row's result does not depend on the
others.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tetrad.worker_svc.checkpoint.lora_weights import LoraPair, LoraWeights
from tetrad.worker_svc.core.lora import LoraSite, PackedLora
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.layers.lora import LoraReader
from tetrad.worker_svc.native import structures
from tetrad.worker_svc.native.memory import WeightMemory, room_for
from tetrad.worker_svc.native.operands import NO_SITE, Adapted
from tetrad.worker_svc.native.program import Adapters
from tetrad.worker_svc.native.program_builder import ProgramBuilder

MAX_PARTS = 3
"""Largest number of modules in a fused product: queries, keys, values."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A site: the names of its modules, and the index of each module's first output."""

    parts: Sequence[tuple[str, int]]
    is_table: bool = False


class NativeLora:
    """An adapter in the layout of the native kernels; see PackedLora.

    Args:
        weights: the adapter's matrices.
        products: the sites of the model, in order.
        lanes: number of floats in a vector of the kernels.
    """

    def __init__(self, weights: LoraWeights, products: Sequence[_Product], lanes: int) -> None:
        self.digest = weights.digest
        self._kept: list[object] = []
        self._lanes = lanes
        self._memory = WeightMemory(sum(_size_bytes(pair, lanes) for pair in weights.pairs.values()))
        self._table = (structures.LoraSite * len(products))(*(self._site(weights, product) for product in products))
        self.address = ctypes.addressof(self._table)
        self.rank = max((site.rank for site in self._table), default=0)  # largest rank of a site

    def _site(self, weights: LoraWeights, product: _Product) -> structures.LoraSite:
        found = [(weights.pairs[name], first) for name, first in product.parts if name in weights.pairs]
        if not found:
            return structures.LoraSite()
        dtypes = {pair.a.dtype for pair, _ in found}
        dtype = dtypes.pop() if len(dtypes) == 1 and not product.is_table else torch.float32
        a = torch.cat([pair.a.to(dtype) for pair, _ in found])
        parts = (structures.LoraPart * len(found))()
        offset = 0
        for part, (pair, first) in zip(parts, found, strict=True):
            part.first, part.count, part.offset, part.rank = first, len(pair.b), offset, len(pair.a)
            part.b, part.scale = self._blocks(pair.b.to(dtype)), pair.scale
            offset += len(pair.a)
        self._kept.append(parts)
        return structures.LoraSite(
            rank=offset,
            num_parts=len(found),
            a=self._matrix(a.T if product.is_table else a),
            parts=parts,
            bits=8 * dtype.itemsize,
            is_bfloat=dtype == torch.bfloat16,
        )

    def _matrix(self, values: torch.Tensor) -> int:
        """Store a matrix and return its address."""
        return self._zeros(values.shape, values.dtype).copy_(values).data_ptr()

    def _blocks(self, b: torch.Tensor) -> int:
        """Store b [outputs, rank] as [blocks, rank, lanes] and return the address; zeros fill the last block."""
        outputs, rank = b.shape
        whole = outputs // self._lanes
        blocks = self._zeros((_num_blocks(outputs, self._lanes), rank, self._lanes), b.dtype)
        blocks[:whole] = b[: whole * self._lanes].view(whole, self._lanes, rank).transpose(1, 2)
        if rest := outputs % self._lanes:
            blocks[whole, :, :rest] = b[whole * self._lanes :].T
        return blocks.data_ptr()

    def _zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        memory = self._memory.zeros(math.prod(shape) * dtype.itemsize)
        self._kept.append(memory)
        return torch.from_numpy(memory).view(dtype).view(*shape)


class NoNativeLoras:
    """The sites of a program without adapters; see NativeLoras."""

    shrunk_width = 1
    selected: Adapters | None = None

    def add_product(self, parts: Sequence[tuple[str, int]], columns: int, *, is_paired: bool = False) -> int:  # noqa: ARG002
        """See NativeLoras."""
        return NO_SITE

    def add_table(self, name: str, rows: int, columns: int) -> int:  # noqa: ARG002 - one signature
        """See NativeLoras."""
        return NO_SITE


class NativeLoras:
    """The adapters of a native program; see ModelLoras.

    Args:
        read: reads an adapter's directory; takes the modules that adapters may change.
        lanes: number of floats in a vector of the kernels.
        max_rank: largest rank of a module.
    """

    def __init__(self, read: LoraReader, lanes: int, max_rank: int) -> None:
        self._read, self._lanes = read, lanes
        self.shrunk_width = MAX_PARTS * max_rank
        self.sites: dict[str, LoraSite] = {}
        self._products: list[_Product] = []
        self._installed: dict[int, NativeLora] = {}
        self.selected: Adapters | None = None

    def add_product(self, parts: Sequence[tuple[str, int]], columns: int, *, is_paired: bool = False) -> int:
        """Add a site for a product and return its number.

        Args:
            parts: canonical names and numbers of outputs of the modules, whose outputs are side by side.
            columns: number of inputs.
            is_paired: whether the product is a paired matrix: a gate, and the values that it multiplies.
        """
        firsts, first = [], 0
        for name, size in parts:
            self.sites[name] = LoraSite(columns, size)
            firsts.append((name, first))
            first += -(-size // self._lanes) * self._lanes if is_paired else size
        self._products.append(_Product(firsts))
        return len(self._products) - 1

    def add_table(self, name: str, rows: int, columns: int) -> int:
        """Add a site for a table of embeddings [rows, columns] and return its number."""
        self.sites[name] = LoraSite(rows, columns, is_table=True)
        self._products.append(_Product([(name, 0)], is_table=True))
        return len(self._products) - 1

    def read(self, path: Path) -> NativeLora:
        """See ModelLoras."""
        return NativeLora(self._read(path, self.sites), self._products, self._lanes)

    def install(self, lora_id: int, packed: PackedLora) -> None:
        """See ModelLoras."""
        assert isinstance(packed, NativeLora)
        self._installed[lora_id] = packed

    def remove(self, lora_id: int) -> None:
        """See ModelLoras."""
        self._installed.pop(lora_id, None)
        self.selected = None

    def clear(self) -> None:
        """See ModelLoras."""
        self._installed.clear()
        self.selected = None

    def has(self, lora_id: int) -> bool:
        """See ModelLoras."""
        return lora_id in self._installed

    def select(self, lora_ids: Ints) -> None:
        """See ModelLoras."""
        ids, rows = np.unique(lora_ids, return_inverse=True)
        loras = [self._installed[each] if each else None for each in ids.tolist()]
        ranks = [lora.rank for lora in loras if lora is not None]
        if not ranks:
            self.selected = None
            return
        addresses = np.array([0 if lora is None else lora.address for lora in loras], np.uint64)
        self.selected = Adapters(np.ascontiguousarray(addresses[rows]), max(ranks))


class ProgramSites:
    """The sites of one program, which share a buffer.

    Args:
        loras: assigns the numbers of sites.
        program: the program that is written.
    """

    def __init__(self, loras: NativeLoras | NoNativeLoras, program: ProgramBuilder) -> None:
        self._loras, self._shrunk = loras, program.buffer(loras.shrunk_width)

    def buffer_of_pairs(self, program: ProgramBuilder, num_chosen: int) -> int:
        """Return the number of a new buffer for products of experts: each token has one row per chosen expert."""
        return program.buffer(num_chosen * self._loras.shrunk_width)

    def add_experts(
        self, parts: Sequence[Sequence[tuple[str, int]]], columns: int, shrunk: int, *, is_paired: bool = False
    ) -> Adapted:
        """Add sites for the products of experts and return the first one; the sites of the other experts follow it.

        Args:
            parts: the modules of each expert, see NativeLoras.add_product.
            columns: number of inputs.
            shrunk: see buffer_of_pairs.
            is_paired: see NativeLoras.add_product.
        """
        sites = [self._loras.add_product(its_parts, columns, is_paired=is_paired) for its_parts in parts]
        return Adapted(sites[0], shrunk)

    def add(self, parts: Sequence[tuple[str, int]], columns: int, *, is_paired: bool = False) -> Adapted:
        """Add a site for a product and return it with the shared buffer; see NativeLoras.add_product."""
        return Adapted(self._loras.add_product(parts, columns, is_paired=is_paired), self._shrunk)


def _size_bytes(pair: LoraPair, lanes: int) -> int:
    padded = _num_blocks(len(pair.b), lanes) * lanes * len(pair.a)
    return room_for(pair.a.nbytes) + room_for(padded * pair.b.itemsize)


def _num_blocks(outputs: int, lanes: int) -> int:
    return -(-outputs // lanes)
