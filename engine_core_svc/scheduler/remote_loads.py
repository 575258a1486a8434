"""RemoteLoads: requests that wait for KV blocks from elsewhere (WAITING_FOR_REMOTE_KVS).

Called by the scheduler when a waiting request could begin, and when transfers have ended. Such a request holds no blocks: the
transfer's BlockLoad owns them. When the transfer ends, they become part of the prefix cache, where the request finds them like
any prefix. So requests that end meanwhile or are preempted later are no special case. Knows nothing of plans and budgets.
"""

from collections.abc import Iterator

from tetrad.engine_core_svc.core.plan import TransferEvents
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.block_load import BlockLoad
from tetrad.engine_core_svc.kv_cache.coordinator import Prefix
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.request_states import RequestStates


class RemoteLoads:
    """The transfers of KV blocks to this engine core.

    Args:
        states: all unfinished requests.
        kv_cache: allocates the blocks and knows the connector.
    """

    def __init__(self, states: RequestStates, kv_cache: KVCacheManager) -> None:
        self._states, self._kv_cache = states, kv_cache
        self._loads: dict[int, BlockLoad] = {}

    def __iter__(self) -> Iterator[BlockLoad]:
        """Iterate over the transfers under way."""
        return iter(self._loads.values())

    def __len__(self) -> int:
        """Return the number of transfers under way."""
        return len(self._loads)

    def begin(self, request: Request, prefix: Prefix, num_reserved: int) -> bool:
        """Begin to load the blocks after a request's cached prefix, if a connector has any and free blocks suffice.

        `num_reserved` of the free blocks are reserved for other requests. Returns whether a transfer has begun.
        """
        load = self._kv_cache.begin_load(request, prefix, num_reserved)
        if load is None:
            return False
        self._loads[request.key] = load
        self._states.await_remote_kvs(request)
        return True

    def apply(self, events: TransferEvents) -> None:
        """End transfers; their requests return to the queue. A request whose transfer has failed computes its prompt itself.

        Blocks that have been read are freed.
        """
        failed = frozenset(events.failed)
        for key in failed.union(events.received):
            load = self._loads.pop(key, None)
            if load is None:
                continue  # a transfer of a lost worker
            self._kv_cache.end_load(load, is_received=key not in failed)
            if key in failed:
                load.request.may_load = False
            else:
                load.request.num_fetched_tokens += load.num_blocks * self._kv_cache.block_size
            if load.request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                self._states.remote_kvs_ready(load.request)
        for key in events.sent:
            self._states.deferred_frees.note_sent(key)

    def forget_worker(self) -> None:
        """Forget all transfers and put their requests back into the queue: the worker is lost."""
        for load in self._loads.values():
            if load.request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                self._states.remote_kvs_ready(load.request)
        self._loads.clear()
