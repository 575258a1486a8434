"""LoRA adapters on the device: max_loras slots in device memory, and pinned host memory for all installed adapters.

If a step needs an adapter without a slot, it gets the slot of the least recently used adapter. The copy is queued before
the step's kernels, so the host does not wait for it. Another thread reads and packs files (`read`); all other methods belong to
the compute thread.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.lora import LoraLimits, LoraSite, PackedLora
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.device.host_copy import HostCopy
from tetrad.worker_svc.cuda.graphs import TOKENS
from tetrad.worker_svc.cuda.interface import DeviceParameters
from tetrad.worker_svc.cuda.lora_products import AdaptedLayer, AdaptedProduct
from tetrad.worker_svc.cuda.lora_rows import AdaptedRows, GraphRows, upload_rows
from tetrad.worker_svc.kernels.lora import padded_rank
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.lora import AdaptedParameters, LoraReader, scaled_b
from tetrad.worker_svc.layers.parameters import Lookup


@dataclass(frozen=True, slots=True)
class DeviceLora:
    """An adapter in pinned host memory, in the layout of a slot; see PackedLora.

    Attributes:
        digest: SHA-256 digest of its files.
        values: the values of the products that it changes, one after another.
        runs: (offset in a slot, offset in `values`, size) of each contiguous part, in bytes.
    """

    digest: bytes
    values: HostCopy
    runs: Sequence[tuple[int, int, int]]


class DeviceLoras:
    """The adapters of a model on a device; see ModelLoras and AdaptedLayers.

    Args:
        read: reads an adapter's directory; takes the modules that adapters may change.
        limits: the number of slots, and their rank.
        accelerator: the device with the slots.
        dtype: type of activations.
    """

    def __init__(self, read: LoraReader, limits: LoraLimits, accelerator: Accelerator, dtype: torch.dtype) -> None:
        self._read, self._accelerator, self._dtype = read, accelerator, dtype
        self._num_slots, self._rank = limits.max_loras, padded_rank(limits.max_lora_rank)
        self.sites: dict[str, LoraSite] = {}
        self.orders: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        self._products: list[AdaptedProduct] = []
        self._installed: dict[int, DeviceLora] = {}
        self._slot_of: dict[int, int] = {}  # adapters on the device, the least recently used one first
        self._slots = torch.empty(0)
        self._graph_rows = GraphRows(accelerator, TOKENS[-1], self._num_slots)
        self._rows: AdaptedRows | None = None
        self._rehearses = False

    def linear(self, base: Linear, parts: Sequence[tuple[str, int]]) -> Linear:
        """See AdaptedLayers."""
        self._products.append(AdaptedProduct(parts, self.sites[parts[0][0]].inputs, self._rank, self._current_rows))
        return AdaptedLayer(base, self._products[-1])

    def lookup(self, base: Lookup, name: str) -> Lookup:
        """See AdaptedLayers."""
        site = self.sites[name]
        parts = [(name, site.outputs)]
        self._products.append(AdaptedProduct(parts, site.inputs, self._rank, self._current_rows, is_table=True))
        return AdaptedLayer(base, self._products[-1])

    def allocate(self) -> None:
        """Allocate the slots, after all layers of the model have been created."""
        size = sum(product.size for product in self._products)
        self._slots = torch.zeros(self._num_slots, size, dtype=self._dtype, device=self._accelerator.device)
        first = 0
        for product in self._products:
            product.place(self._slots, first)
            first += product.size

    def read(self, path: Path) -> DeviceLora:
        """See ModelLoras."""
        weights = self._read(path, self.sites)
        pairs = {name: (pair.a.float(), scaled_b(self, name, pair)) for name, pair in weights.pairs.items()}
        packed: list[torch.Tensor] = []
        runs: list[tuple[int, int, int]] = []
        target = source = 0
        for product in self._products:
            num_bytes = product.size * self._dtype.itemsize
            if any(name in pairs for name, _ in product.parts):
                packed.append(product.pack([pairs.get(name) for name, _ in product.parts]).to(self._dtype))
                if runs and sum(runs[-1][::2]) == target:
                    runs[-1] = (*runs[-1][:2], runs[-1][2] + num_bytes)
                else:
                    runs.append((target, source, num_bytes))
                source += num_bytes
            target += num_bytes
        # Nothing is packed if the adapter changes only layers of other ranks.
        values = torch.cat(packed) if packed else torch.empty(0, dtype=self._dtype)
        return DeviceLora(weights.digest, HostCopy(self._accelerator, values.view(torch.uint8)), runs)

    def install(self, lora_id: int, packed: PackedLora) -> None:
        """See ModelLoras; if a slot is free, the adapter is copied to it at once."""
        assert isinstance(packed, DeviceLora)
        self._slot_of.pop(lora_id, None)
        self._installed[lora_id] = packed
        if len(self._slot_of) < self._num_slots:
            self._fill(lora_id, self._free_slot())

    def remove(self, lora_id: int) -> None:
        """See ModelLoras."""
        self._installed.pop(lora_id, None)
        self._slot_of.pop(lora_id, None)
        self._rows = None

    def clear(self) -> None:
        """See ModelLoras."""
        self._installed.clear()
        self._slot_of.clear()
        self._rows = None

    def has(self, lora_id: int) -> bool:
        """See ModelLoras."""
        return lora_id in self._installed

    def select(self, lora_ids: Ints) -> None:
        """See ModelLoras; raise InvalidRequest for more adapters than slots."""
        slots = self._place(lora_ids)
        self._rows = None if slots is None else upload_rows(self._accelerator, slots, self._num_slots)

    def select_for_graph(self, lora_ids: Ints) -> bool:
        """Set the adapters of the rows of the next replayed graph; return whether any row has an adapter."""
        slots = self._place(lora_ids)
        if slots is None:
            return False
        self._graph_rows.write(slots)
        return True

    def forget_graph_rows(self) -> None:
        """Remove the adapters of all rows of a graph."""
        self._graph_rows.write(np.empty(0, np.int64))

    def use_graph_rows(self, num_rows: int, *, are_adapted: bool) -> None:
        """Use the adapters of `select_for_graph` for the next step's rows, or no adapters."""
        self._rows = self._graph_rows.of(num_rows) if are_adapted else None

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Treat every row as a row with an adapter inside the context, so that steps take the memory of steps with adapters."""
        self._rehearses = True
        try:
            yield
        finally:
            self._rehearses, self._rows = False, None

    def _current_rows(self) -> AdaptedRows | None:
        return self._rows

    def _place(self, lora_ids: Ints) -> Ints | None:
        """Return the slot of each row's adapter [N] (-1: no adapter), and fill slots as needed; None if no row has one."""
        if self._rehearses:
            return np.zeros(len(lora_ids), np.int64)
        ids, inverse = np.unique(lora_ids, return_inverse=True)
        needed = [each for each in ids.tolist() if each > 0]
        if not needed:
            return None
        if len(needed) > self._num_slots:
            raise InvalidRequest(f"The plan's rows have {len(needed)} adapters; max_loras is {self._num_slots}.")
        for lora_id in needed:
            if lora_id in self._slot_of:
                self._slot_of[lora_id] = self._slot_of.pop(lora_id)  # move to the end: most recently used
        for lora_id in needed:
            if lora_id not in self._slot_of:
                self._fill(lora_id, self._free_slot() if len(self._slot_of) < self._num_slots else self._evicted(needed))
        return np.array([self._slot_of.get(each, -1) for each in ids.tolist()], np.int64)[inverse]

    def _free_slot(self) -> int:
        return min(set(range(self._num_slots)) - set(self._slot_of.values()))

    def _evicted(self, needed: Sequence[int]) -> int:
        """Remove the least recently used adapter that the step does not need, and return its slot."""
        return self._slot_of.pop(next(each for each in self._slot_of if each not in needed))

    @torch.inference_mode()
    def _fill(self, lora_id: int, slot: int) -> None:
        """Queue the copy of an adapter to a slot, after the steps that read the slot's previous adapter."""
        lora, target = self._installed[lora_id], self._slots[slot].view(torch.uint8)
        target.zero_()
        for to, begin, num_bytes in lora.runs:
            lora.values.write_part(target[to : to + num_bytes], begin)
        self._slot_of[lora_id] = slot


class AdaptedLinears(AdaptedParameters):
    """Weights on the device whose layers support adapters; see DeviceParameters.

    Args:
        inner: the weights.
        loras: the adapters, which register each module that they may change.
    """

    def __init__(self, inner: DeviceParameters, loras: DeviceLoras) -> None:
        super().__init__(inner, loras)
        self._linears, self.dtype = inner, inner.dtype

    @property
    def tensors(self) -> list[torch.Tensor]:
        """See DeviceParameters."""
        return self._linears.tensors
