"""Device state: tokens and block tables of all requests, in device memory for the kernels.

A mirror of the input batch, by slot. The host knows all lengths; only the device knows sampled tokens that are not copied to
the host yet. Before a launch, one copy uploads all changes that the step needs.
"""

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.cuda.device.accelerator import Accelerator


class DeviceState:
    """Persistent tensors of S slots; a SlotListener.

    Args:
        accelerator: the device with the tensors.
        batch: the input batch that the tensors mirror.
    """

    def __init__(self, accelerator: Accelerator, batch: InputBatch) -> None:
        self._accelerator, self._batch = accelerator, batch
        self.token_ids = torch.zeros(batch.token_ids.shape, dtype=torch.int32, device=accelerator.device)
        """[S, max_model_len + 1]; the first num_tokens of a slot are valid, the others are left over from earlier requests."""
        self.block_tables = torch.zeros(batch.block_tables.shape, dtype=torch.int32, device=accelerator.device)
        """[G, S, blocks of the longest request]; entries after a request's blocks are left over, and are existing block ids."""
        self._num_tokens = np.zeros(batch.max_num_seqs, np.int64)
        self._num_blocks = np.zeros(batch.max_num_seqs, np.int64)

    def add(self, slot: int, request: NewRequest) -> None:  # noqa: ARG002 - of the protocol
        """Reset the slot's counts: the device has no tokens and blocks of the new request yet."""
        self._num_tokens[slot] = self._num_blocks[slot] = 0

    def remove(self, slot: int) -> None:
        """Do nothing: the next request overwrites the slot's values."""

    def catch_up(self, slots: Ints) -> None:
        """Copy the tokens and blocks of these slots that the host has and the device lacks."""
        tables, known = self._batch.block_tables, self._batch.num_blocks
        for mirror, table in zip(self.block_tables, tables, strict=True):
            self._catch_up(mirror, table, slots, self._num_blocks, known)
        self._num_blocks[slots] = known[slots]
        self._catch_up(self.token_ids, self._batch.token_ids, slots, self._num_tokens, self._batch.num_tokens)
        self._num_tokens[slots] = self._batch.num_tokens[slots]

    def put_drafts(self, slots: Ints) -> None:
        """Copy the drafts of these slots to the places after their known tokens, all of which the device has."""
        counts = self._batch.num_drafts[slots]
        owners = np.repeat(slots, counts)
        places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts) + self._batch.num_tokens[owners]
        if len(owners):
            drafts = self._batch.token_ids[owners, places].astype(np.int64)
            changes = self._accelerator.upload(np.stack([owners * self.token_ids.shape[1] + places, drafts]))
            self.token_ids.view(-1).index_copy_(0, changes[0], changes[1].to(torch.int32))

    def write(self, slots: Ints, places: Ints, sampled: torch.Tensor) -> None:
        """Write sampled tokens [N] int32 to the places of drafts, or after the last one; `take_in` counts the right ones."""
        targets = self._accelerator.upload(slots * self.token_ids.shape[1] + self._batch.num_tokens[slots] + places)
        self.token_ids.view(-1).index_copy_(0, targets, sampled)

    def take_in(self, slots: Ints, counts: Ints) -> None:
        """Increase the token counts [N] of slots, here and in the input batch, by tokens that `write` has written."""
        self._batch.num_tokens[slots] += counts
        self._num_tokens[slots] = self._batch.num_tokens[slots]

    def append(self, slots: Ints, sampled: torch.Tensor) -> None:
        """Append a sampled token [N] int32 to each of N slots; the input batch only counts the token and stores the id 0."""
        if len(slots):
            self._put(self._next_places(slots), sampled)

    def _next_places(self, slots: Ints) -> torch.Tensor:
        """Count a token of each of N slots, and return the places [N] on the device that it belongs to."""
        ends = np.minimum(self._batch.num_tokens[slots], self._batch.max_model_len)
        places = self._accelerator.upload(slots * self.token_ids.shape[1] + ends)
        self._batch.append_sampled(slots, np.zeros(len(slots), np.int64))
        self._num_tokens[slots] = self._batch.num_tokens[slots]
        return places

    def _put(self, places: torch.Tensor, token_ids: torch.Tensor) -> None:
        self.token_ids.view(-1).index_copy_(0, places, token_ids)

    def _catch_up(self, target: torch.Tensor, source: np.ndarray, slots: Ints, mirrored: Ints, known: Ints) -> None:
        behind = slots[mirrored[slots] < known[slots]]
        if not len(behind):
            return
        counts = known[behind] - mirrored[behind]
        rows = np.repeat(behind, counts)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - mirrored[behind], counts)
        changes = self._accelerator.upload(np.stack([rows * source.shape[1] + places, source[rows, places].astype(np.int64)]))
        target.view(-1).index_copy_(0, changes[0], changes[1].to(torch.int32))
