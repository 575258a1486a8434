"""KV transfers: a connector that moves the blocks of prompts between engine cores (disaggregated prefill).

A request with `keeps_blocks` leaves a lease of its prompt's whole blocks when it ends; the plan after that puts it in force at
the worker. A request with a source fetches the blocks that its own prefix cache lacks. Knows keys, hashes and block ids. The
worker ends each lease, after a read or when its time is over, so the blocks are never freed under a reader.
"""

import secrets
from collections.abc import Callable, Sequence

from tetrad.engine_core_svc.core.kv_groups import KvGroup
from tetrad.engine_core_svc.core.kv_transfer import HandOver, KvLease, KvReceive, RemoteBlocks, TransferOrders
from tetrad.engine_core_svc.core.plan import SchedulerOutput
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.block_load import BlockLoad
from tetrad.engine_core_svc.kv_cache.connector import KVConnector
from tetrad.services.errors import Unsupported

_LEASE_ID_BITS = 53
"""JSON numbers keep so many bits in every language."""
_KEPT_AFTER = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


def check_model(groups: Sequence[KvGroup], *, generates: bool) -> None:
    """Raise Unsupported unless the model generates tokens, and has one KV group that keeps all of them.

    Blocks of other groups are freed or overwritten, and of a request that pools nobody reads the blocks.
    """
    if not generates:
        raise Unsupported("kv-role needs a model that generates tokens; this one pools.")
    if len(groups) != 1 or not groups[0].keeps_all:
        raise Unsupported(
            f"kv-role needs a model whose layers all keep the keys and values of every token; this one has {len(groups)} KV "
            "groups, with sliding windows or states, or none."
        )


class KvTransfers(KVConnector):
    """The transfers of one engine core.

    Args:
        engine_id: instance id of this engine core.
        address: host and port of its worker for workers of other engine cores; a Unix socket (unix:/path) has port 0.
        block_size: tokens per block.
        max_kept_blocks: maximum number of blocks in leases; the blocks of further requests are freed, and readers compute them.
        lease_s: seconds that blocks are kept without a read, and maximum duration of a receive.
        new_lease_id: returns a new name of a lease. It cannot be guessed: whoever knows it can read the blocks.
    """

    def __init__(
        self,
        engine_id: str,
        address: tuple[str, int],
        *,
        block_size: int,
        max_kept_blocks: int,
        lease_s: float,
        new_lease_id: Callable[[], int] = lambda: secrets.randbits(_LEASE_ID_BITS) | 1,
    ) -> None:
        self._engine_id, self._address = engine_id, address
        self._block_size, self._lease_s, self._new_lease_id = block_size, lease_s, new_lease_id
        self._max_kept_blocks = max_kept_blocks
        self._kept: dict[int, int] = {}  # key of a request -> number of its blocks in a lease
        self._leases: list[KvLease] = []
        self._receives: list[KvReceive] = []
        self._cancelled: list[int] = []

    @property
    def has_new_transfers(self) -> bool:
        """See KVConnector."""
        return bool(self._leases or self._receives or self._cancelled)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
        """Return how many tokens after its cached prefix a request's source has, in whole blocks."""
        source = request.transfer.source
        return 0 if source is None else source.num_tokens // self._block_size * self._block_size - num_computed_tokens

    def update_state_after_alloc(self, load: BlockLoad) -> None:
        """Fetch blocks from the source of the load's request."""
        source = load.request.transfer.source
        assert source is not None, "only a request with a source has matched tokens"
        last_hash = load.request.block_hashes[load.first + load.num_blocks - 1]
        self._receives.append(KvReceive(load.request.key, source, load.first, load.tables, last_hash, self._lease_s))
        load.request.forget_source()

    def give_up(self, load: BlockLoad) -> None:
        """See KVConnector."""
        self._cancelled.append(load.request.key)

    def nothing_to_load(self, request: Request) -> None:
        """Give the blocks of a request's source back: a read of no blocks ends the lease."""
        source = request.transfer.source
        if source is not None:
            self._receives.append(KvReceive(request.key, source, 0, ((),), b"", self._lease_s))
            request.forget_source()

    def request_finished(self, request: Request, blocks: Sequence[int]) -> bool:
        """Make a lease of the whole blocks of an ended request's prompt, if it asks for it; see KVConnector.

        If it ends before it could read the blocks of its source, they are given back.
        """
        self.nothing_to_load(request)
        num_blocks = min(request.num_prompt_tokens // self._block_size, len(request.block_hashes), len(blocks))
        if not request.transfer.keeps_blocks or request.status not in _KEPT_AFTER or not num_blocks:
            return False
        if sum(self._kept.values()) + len(blocks) > self._max_kept_blocks:
            return False
        self._kept[request.key] = len(blocks)
        lease = KvLease(
            request.key,
            request.request_id,
            self._new_lease_id(),
            blocks[:num_blocks],
            request.block_hashes[:num_blocks],
            self._lease_s,
        )
        self._leases.append(lease)
        num_tokens = num_blocks * self._block_size
        remote = RemoteBlocks(self._engine_id, request.request_id, *self._address, lease.lease_id, num_tokens)
        request.hand_over = HandOver(remote, lease.blocks)
        return True

    def build_connector_meta(self, plan: SchedulerOutput) -> None:
        """Add the new transfers to the plan."""
        if self.has_new_transfers:
            plan.transfers = TransferOrders(self._receives, self._leases, self._cancelled)
            self._receives, self._leases, self._cancelled = [], [], []

    def blocks_read(self, key: int) -> None:
        """See KVConnector."""
        self._kept.pop(key, None)

    def worker_lost(self) -> None:
        """Forget all leases, and the transfers that no plan has yet: their blocks are gone."""
        self._receives, self._leases, self._cancelled = [], [], []
        self._kept.clear()
