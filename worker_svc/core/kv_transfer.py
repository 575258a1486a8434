"""KV transfer: the values of transfers of KV blocks between the workers of different engine cores.

A lease keeps blocks of an ended request for a worker that reads them; a receive fetches the blocks of such a lease.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
HASH_BYTES = 32
"""Bytes of the hash of a block's content."""


@dataclass(frozen=True, slots=True)
class KvLease:
    """Blocks that are kept for a reader.

    Attributes:
        transfer_id: the engine core's id of the transfer.
        lease_id: the reader's name of the lease; never used twice.
        blocks: ids of the blocks, in the order of the sequence.
        hashes: hash of the content of each block and everything before it.
        ttl_s: seconds without a read after which the lease ends.
    """

    transfer_id: int
    lease_id: int
    blocks: Ints
    hashes: Sequence[bytes]
    ttl_s: float


@dataclass(frozen=True, slots=True)
class KvReceive:
    """Blocks to fetch from another worker.

    Attributes:
        transfer_id: the engine core's id of the transfer.
        address: address of the other worker.
        lease_id: the lease to read there.
        first: place among the blocks of the lease of the first one to fetch.
        blocks: ids of the own blocks to write.
        last_hash: hash of the content of the last block.
        timeout_s: maximum duration in seconds; None: no limit.
    """

    transfer_id: int
    address: str
    lease_id: int
    first: int
    blocks: Ints
    last_hash: bytes
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class KvTransferOrders:
    """The transfers that begin with one plan, and the ids of receives that end with it."""

    receives: Sequence[KvReceive] = ()
    leases: Sequence[KvLease] = ()
    cancelled: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class KvTransferEvents:
    """Ids of transfers that have ended.

    Attributes:
        sent, expired: leases that were read, and leases that ended before.
        received, failed: receives that have written all their blocks, and others.
        bytes_moved: bytes of the blocks of `sent` and `received`.
        seconds: duration of the receives.
    """

    sent: Sequence[int] = ()
    expired: Sequence[int] = ()
    received: Sequence[int] = ()
    failed: Sequence[int] = ()
    bytes_moved: int = 0
    seconds: float = 0.0


class BlockContents(Protocol):
    """The content of KV blocks in host memory, beside the runner's steps; safe on any thread for blocks that no step uses."""

    @property
    def block_bytes(self) -> int:
        """The bytes of one block, over all layers."""

    def read(self, blocks: Ints) -> bytes:
        """Return the content of these blocks, one after another."""

    def write(self, blocks: Ints, content: bytes) -> None:
        """Overwrite these blocks."""


@runtime_checkable
class SharesBlocks(Protocol):
    """A runner whose blocks other workers can read."""

    @property
    def block_contents(self) -> BlockContents | None:
        """The content of its blocks; None: other workers cannot read them."""
