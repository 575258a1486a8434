"""RemoteLoads: requests that wait for KV blocks from elsewhere (WAITING_FOR_REMOTE_KVS).

Called by the scheduler when a waiting request could begin, and when transfers have ended. Such a request holds no blocks: the
transfer's BlockLoad owns them. When the transfer ends, they become part of the prefix cache, where the request finds them like
any prefix. So requests that end meanwhile or are preempted later are no special case. Requests with the same source, such as
the sequences of one call, wait for one transfer. Knows nothing of plans and budgets.
"""

from collections.abc import Iterator

from tetrad.engine_core_svc.core.kv_transfer import RemoteBlocks
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
        self._waiting: dict[int, list[Request]] = {}  # by key of a load's request, which is the first of them
        self._reads: dict[RemoteBlocks, int] = {}  # source -> key of the load's request
        self._given_up: set[int] = set()  # keys of loads for which no request waits
        self._outdated: set[int] = set()  # keys of loads whose blocks must not become part of the prefix cache

    def __iter__(self) -> Iterator[BlockLoad]:
        """Iterate over the transfers under way."""
        return iter(self._loads.values())

    def __len__(self) -> int:
        """Return the number of transfers under way."""
        return len(self._loads)

    def begin(self, request: Request, prefix: Prefix, num_reserved: int) -> bool:
        """Begin to load the blocks after a request's cached prefix, if a connector has any and free blocks suffice.

        `num_reserved` of the free blocks are reserved for other requests. Returns whether the request waits for a transfer.
        """
        source = request.transfer.source
        if source in self._reads and request.may_load:
            self._waiting[self._reads[source]].append(request)
        elif (load := self._kv_cache.begin_load(request, prefix, num_reserved)) is not None:
            self._loads[request.key], self._waiting[request.key] = load, [request]
            if source is not None:
                self._reads[source] = request.key
        else:
            return False
        self._states.await_remote_kvs(request)
        return True

    def give_up_unwanted(self) -> None:
        """Give transfers up for which no request waits any more. Their blocks stay theirs until they have ended."""
        for key, requests in self._waiting.items():
            if key not in self._given_up and all(each.status is not RequestStatus.WAITING_FOR_REMOTE_KVS for each in requests):
                self._given_up.add(key)
                self._forget_source(key)
                self._kv_cache.connector.give_up(self._loads[key])

    def apply(self, events: TransferEvents) -> None:
        """End transfers; their requests return to the queue. A request whose transfer has failed computes its prompt itself.

        Blocks that have been read are freed.
        """
        failed = frozenset(events.failed)
        for key in failed.union(events.received):
            load = self._loads.pop(key, None)
            if load is None:
                continue  # a transfer of a lost worker
            is_received = key not in failed and key not in self._outdated
            for keys in (self._outdated, self._given_up):
                keys.discard(key)
            self._kv_cache.end_load(load, is_received=is_received)
            self._forget_source(key)
            for request in self._waiting.pop(key):
                request.forget_source()
                request.may_load = request.may_load and is_received
                request.num_fetched_tokens += load.num_blocks * self._kv_cache.block_size if is_received else 0
                self._ready(request)
        for key in events.sent:
            self._states.deferred_frees.note_sent(key)
            self._kv_cache.connector.blocks_read(key)

    def outdate(self) -> None:
        """Read no blocks that were computed up to now: a reset forgets them. Transfers under way count as failed."""
        self._outdated.update(self._loads)
        for request in self._states.requests.values():
            self._kv_cache.connector.nothing_to_load(request)

    def forget_worker(self) -> None:
        """Forget all transfers and put their requests back into the queue: the worker is lost."""
        for request in [request for requests in self._waiting.values() for request in requests]:
            self._ready(request)
        self._loads.clear()
        self._waiting.clear()
        self._reads.clear()
        self._outdated.clear()
        self._given_up.clear()

    def _forget_source(self, key: int) -> None:
        """Let requests with the source of a load begin a load of their own."""
        self._reads = {source: reader for source, reader in self._reads.items() if reader != key}

    def _ready(self, request: Request) -> None:
        if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:  # else it has ended meanwhile
            self._states.remote_kvs_ready(request)
