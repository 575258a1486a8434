"""Inputs of forward passes on the device: ids, positions and attention metadata, from the device's state of the requests.

Models and draft heads have gatherers of their own, over one batch. A gatherer queues its work and waits for nothing.
"""

from typing import NamedTuple

import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.attention import AttentionParts, DeviceStep, PagedAttention
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.host_metadata import NOTHING, HostMetadata
from tetrad.worker_svc.cuda.interface import PagedModel
from tetrad.worker_svc.cuda.mixed_rows import MixedLayout, MixedRows
from tetrad.worker_svc.cuda.row_tables import table_of
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.kernels.gather_inputs import NUM_KEYS, SLOT, Gathered, gather_inputs
from tetrad.worker_svc.models.host import HostStep


class PassInputs(NamedTuple):
    """The inputs of a forward pass over T tokens."""

    token_ids: torch.Tensor  # [T] int32
    positions: torch.Tensor  # [T] int32, of rotary embeddings; see Shifts
    steps: list[DeviceStep]  # for each KV group


class InputGatherer:
    """Gathers the inputs of one model's passes.

    Args:
        model: the model.
        state: the requests' tokens and block tables on the device.
        batch: the requests.
        accelerator: the device.
        shifts: [S] int32, see Shifts; None: positions are places.
        offset: distance from a row's position to the token that the row reads; 1 for a draft head, which reads the next one.
    """

    def __init__(
        self,
        model: PagedModel,
        state: DeviceState,
        batch: InputBatch,
        accelerator: Accelerator,
        *,
        shifts: torch.Tensor | None = None,
        offset: int = 0,
    ) -> None:
        self._state, self._batch, self._accelerator, self._shifts = state, batch, accelerator, shifts
        self._token_ids = state.token_ids[:, offset:]
        self._attention = (
            PagedAttention(model.config, model.dtype, model.kv_cache_spec.dtype, accelerator)
            if model.has_kernel_attention
            else None
        )
        self._host_metadata = HostMetadata(model.host_steps, batch, accelerator)

    def of_rows(self, rows: StepRows, ends: torch.Tensor | None = None) -> PassInputs:
        """Return the inputs of a step of any shape; `ends` [T]: see StepInputs, None: no token attends to a later one."""
        table = self._accelerator.upload(table_of(rows))
        tables = self._state.block_tables.index_select(1, table[:, SLOT])
        parts = self._attention.parts(rows, tables[0], ends) if self._attention else None
        most_scheduled = int(rows.num_scheduled.max())
        return self._inputs(table, tables, parts, rows.num_tokens, most_scheduled, self._host_metadata.of(rows))

    def of_decodes(self, table: torch.Tensor) -> PassInputs:
        """Return the inputs of rows [B, 5] of one token each; some rows may be padding."""
        tables = self._state.block_tables.index_select(1, table[:, SLOT].clamp(min=0))
        parts = AttentionParts(len(table), self._kernels().decode_part(tables[0], table[:, NUM_KEYS]), None)
        return self._inputs(table, tables, parts, len(table), 1, NOTHING)

    def mixed_layout(self) -> MixedLayout:
        """Return the layout of the inputs of graphs of mixed steps."""
        return MixedLayout(self._batch.max_num_seqs, self._kernels().tiles)

    def of_mixed(self, rows: MixedRows) -> PassInputs:
        """Return the inputs of a graph of mixed steps."""
        tables = self._state.block_tables.index_select(1, rows.table[:, SLOT].clamp(min=0))
        parts = self._kernels().mixed_parts(rows, tables[0])
        return self._inputs(rows.table, tables, parts, rows.num_tokens, rows.num_tokens, NOTHING)

    def _kernels(self) -> PagedAttention:
        assert self._attention is not None, "a model whose steps are recorded has kernels"
        return self._attention

    def _inputs(
        self,
        table: torch.Tensor,
        tables: torch.Tensor,
        parts: AttentionParts | None,
        num_tokens: int,
        most_scheduled: int,
        host: HostStep,
    ) -> PassInputs:
        """Return the inputs of rows [R, 5] with block tables [G, R, P]."""
        gathered = [self._gather(table, its_tables, num_tokens, most_scheduled) for its_tables in self._state.block_tables]
        steps = [
            DeviceStep(
                kv_slots,
                parts.over(tables[group]) if parts else None,
                self._attention,
                host.pages.get(group),
                host.states.get(group),
            )
            for group, (_, _, kv_slots) in enumerate(gathered)
        ]
        ids, positions, _ = gathered[0]
        return PassInputs(ids, positions, steps)

    def _gather(self, table: torch.Tensor, block_tables: torch.Tensor, num_tokens: int, most_scheduled: int) -> Gathered:
        return gather_inputs(
            table,
            self._token_ids,
            block_tables,
            block_size=self._batch.block_size,
            num_tokens=num_tokens,
            most_scheduled=most_scheduled,
            shifts=self._shifts,
        )
