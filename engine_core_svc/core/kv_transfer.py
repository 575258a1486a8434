"""KV transfer: how a request's KV blocks move between engine cores.

A producer computes a prompt and keeps its blocks in a lease (HandOver); a consumer reads them (RemoteBlocks) and goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """The blocks of a request's prompt at another engine core.

    Attributes:
        engine_id: instance id of the other engine core.
        request_id: the request's id there.
        host, port: address of its worker; a Unix socket (unix:/path) has port 0.
        lease_id: name of the lease.
        num_tokens: number of tokens that the blocks hold; whole blocks.
    """

    engine_id: str
    request_id: str
    host: str
    port: int
    lease_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """What a request asks of KV transfers.

    Attributes:
        keeps_blocks: whether the blocks of its prompt are kept for another engine core when it ends.
        source: the blocks to read before it is computed; None: it is computed here.
    """

    keeps_blocks: bool = False
    source: RemoteBlocks | None = None


NO_TRANSFER = KvTransfer()


@dataclass(frozen=True, slots=True)
class KvLease:
    """Blocks of an ended request that are kept for another engine core; see worker.proto.

    Attributes:
        key: key of the request, the transfer's id.
        request_id: the request's id.
        lease_id: name of the lease.
        blocks: ids of the blocks.
        hashes: hashes of their content.
        ttl_s: seconds without a read after which the worker ends the lease.
    """

    key: int
    request_id: str
    lease_id: int
    blocks: Sequence[int]
    hashes: Sequence[bytes]
    ttl_s: float


@dataclass(frozen=True, slots=True)
class KvReceive:
    """Blocks to read from another engine core; see worker.proto.

    Attributes:
        key: key of the request, the transfer's id.
        source: where they are.
        first: place of the first one among the source's blocks.
        tables: ids of the blocks to write, by KV group.
        last_hash: hash of the last block's content.
        timeout_s: maximum duration in seconds.
    """

    key: int
    source: RemoteBlocks
    first: int
    tables: Sequence[Sequence[int]]
    last_hash: bytes
    timeout_s: float


@dataclass(frozen=True, slots=True)
class HandOver:
    """A lease in the form for the consumer's request: where the blocks of a prompt are."""

    blocks: RemoteBlocks
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class TransferOrders:
    """The transfers that begin with one plan, and the keys of receives that it gives up."""

    receives: Sequence[KvReceive] = ()
    leases: Sequence[KvLease] = ()
    cancelled: Sequence[int] = ()
