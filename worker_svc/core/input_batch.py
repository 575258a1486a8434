"""Input batch: stores the worker's requests between steps, in rows ("slots") of preallocated arrays.

Called by the model runner, on the compute thread. Knows token ids, block tables and counts; knows nothing of sampling,
tensors or devices. Invariant: a handle has exactly one slot, and a slot at most one handle.
"""

from typing import Self

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import Ints, NewRequest


class InputBatch:
    """Persistent state of up to `max_num_seqs` requests.

    Args:
        max_num_seqs: number of slots.
        max_model_len: length of the longest sequence, in tokens.
        block_size: tokens per KV block.
        num_groups: number of KV groups; each has one block table per request.
    """

    @classmethod
    def of_layout(cls, layout: KvLayout, num_groups: int) -> Self:
        """Return a batch with the limits of a layout."""
        return cls(
            max_num_seqs=layout.max_num_seqs,
            max_model_len=layout.max_model_len,
            block_size=layout.block_size,
            num_groups=num_groups,
        )

    def __init__(self, *, max_num_seqs: int, max_model_len: int, block_size: int, num_groups: int = 1) -> None:
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        max_blocks = -(-max_model_len // block_size) + 1
        # One column more than the longest sequence, so that the last sampled token is stored like any other.
        self.token_ids: npt.NDArray[np.int32] = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        # Entries before a sliding window still hold ids of freed blocks; nothing reads them.
        self.block_tables: npt.NDArray[np.int32] = np.zeros((num_groups, max_num_seqs, max_blocks), np.int32)
        self.num_blocks: Ints = np.zeros(max_num_seqs, np.int64)
        self.num_tokens: Ints = np.zeros(max_num_seqs, np.int64)
        # Number of drafts in the request's last step; drafts are stored after the known tokens.
        self.num_drafts: Ints = np.zeros(max_num_seqs, np.int64)
        self.num_prompt_tokens: Ints = np.zeros(max_num_seqs, np.int64)
        self.handles: Ints = np.zeros(max_num_seqs, np.int64)
        self._slot_of: dict[int, int] = {}
        self._free = list(range(max_num_seqs - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._slot_of)

    def slot_of(self, handle: int) -> int | None:
        """Return the slot of a request, or None if the request is unknown."""
        return self._slot_of.get(handle)

    def knows_all(self, handles: list[int]) -> bool:
        """Return whether all requests with these handles are known."""
        return all(map(self._slot_of.__contains__, handles))

    def slots_of(self, handles: list[int]) -> list[int]:
        """Return the slots of requests; raise KeyError if one is unknown."""
        slot_of = self._slot_of
        return [slot_of[handle] for handle in handles]

    def add(self, request: NewRequest) -> int:
        """Store a request and return its slot.

        Raises InvalidRequest if the request does not fit: the engine core exceeded its own limits.
        """
        if request.handle in self._slot_of:
            raise InvalidRequest(f"Handle {request.handle} is in use.")
        if not self._free:
            raise InvalidRequest(f"The worker was set up for {self.max_num_seqs} requests; none more fits.")
        length, num_blocks = len(request.token_ids), request.block_ids.shape[1]
        if not 0 < length <= self.max_model_len or num_blocks > self.block_tables.shape[2]:
            raise InvalidRequest(f"{length} tokens in {num_blocks} blocks do not fit max_model_len {self.max_model_len}.")
        slot = self._free.pop()
        self._slot_of[request.handle] = slot
        self.handles[slot] = request.handle
        self.token_ids[slot, :length] = request.token_ids
        self.block_tables[:, slot, :num_blocks] = request.block_ids
        self.num_blocks[slot] = num_blocks
        self.num_tokens[slot] = length
        self.num_prompt_tokens[slot] = request.num_prompt_tokens
        return slot

    def remove(self, handle: int) -> int | None:
        """Remove a request and return its slot; return None if the request is unknown."""
        slot = self._slot_of.pop(handle, None)
        if slot is not None:
            self._free.append(slot)
        return slot

    def append_blocks(self, slots: Ints, counts: Ints, block_ids: Ints) -> None:
        """Append `counts[i]` blocks to each table of `slots[i]`.

        `block_ids` [G, N] holds the new blocks of one request after another. Raises InvalidRequest if a table gets too long.
        """
        if not block_ids.size:
            return
        if int((self.num_blocks[slots] + counts).max()) > self.block_tables.shape[2]:
            raise InvalidRequest(f"A block table is longer than max_model_len {self.max_model_len} needs.")
        rows = np.repeat(slots, counts)
        offsets = np.arange(block_ids.shape[1]) - np.repeat(np.cumsum(counts) - counts, counts)
        self.block_tables[:, rows, self.num_blocks[rows] + offsets] = block_ids
        self.num_blocks[slots] += counts

    def set_drafts(self, rows: Ints, slots: Ints, counts: Ints, token_ids: Ints) -> None:
        """Remove the drafts of the slots `rows`, then store `counts[i]` drafts after the known tokens of `slots[i]`.

        Other slots keep their drafts: a step in progress may have to verify them. Raises InvalidRequest if a sequence with its
        drafts is longer than max_model_len.
        """
        self.num_drafts[rows] = 0
        if not len(slots):
            return
        if int((self.num_tokens[slots] + counts).max()) > self.max_model_len:
            raise InvalidRequest(f"Drafts go beyond max_model_len {self.max_model_len}.")
        owners = np.repeat(slots, counts)
        places = np.arange(len(token_ids)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.token_ids[owners, self.num_tokens[owners] + places] = token_ids
        self.num_drafts[slots] = counts

    def append_sampled(self, slots: Ints, token_ids: Ints) -> None:
        """Append one sampled token to each request. No step needs tokens beyond max_model_len, so they are not kept."""
        ends = np.minimum(self.num_tokens[slots], self.max_model_len)
        self.token_ids[slots, ends] = token_ids
        self.num_tokens[slots] = ends + 1

    def known_handles(self) -> list[int]:
        """Return the handles of all requests."""
        return list(self._slot_of)
