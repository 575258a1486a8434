"""KvEventLog: recent changes of the prefix cache, and its present content, for subscribers.

A connector that stores no blocks; read by SubscribeKvEvents. The changes of one step (one turn of the event loop) form one
batch. Without a subscriber no batches are made, but the cached content is recorded. A subscriber reads the kept batches; one
that is too slow, or too new, gets a snapshot. So a slow subscriber never delays the step loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.connector import KVConnector
from tetrad.engine_core_svc.kv_cache.prefix_hash import media_of_block
from tetrad.services.rpc.columns import pack_u32

_SNAPSHOT_BLOCKS = 512
"""Number of blocks in one message of a snapshot: about 50 KB with 16 tokens a block, built in well under a millisecond."""


@dataclass(slots=True)
class BlocksStored:
    """Consecutive blocks that were cached, each the parent of the next.

    Attributes:
        block_hashes: hashes of the blocks.
        parent: hash of the block before them; None: they begin a sequence.
        token_ids: u32 column of all their tokens.
        cache_salt: the salt of their sequence: only requests with the same salt share it.
        lora_name: the adapter that computed them; empty: the base model.
        extra_keys: for each block, the identifiers of the media in it, each followed by a zero byte; empty: there are none.
    """

    block_hashes: list[bytes]
    parent: bytes | None
    token_ids: bytes
    cache_salt: str = ""
    lora_name: str = ""
    extra_keys: Sequence[bytes] = ()


@dataclass(slots=True)
class BlocksRemoved:
    """Blocks that were removed from the cache."""

    block_hashes: list[bytes]


@dataclass(slots=True)
class BlocksCleared:
    """All blocks were removed from the cache."""


KvEvent = BlocksStored | BlocksRemoved | BlocksCleared


@dataclass(frozen=True, slots=True)
class KvEventBatch:
    """The changes of one step, or a part of a snapshot: the content after the batch of this sequence number."""

    sequence_number: int
    events: list[KvEvent]
    is_snapshot: bool = False
    timestamp: float = field(default_factory=time.time)

    @property
    def num_blocks(self) -> int:
        """The number of blocks that its events name."""
        return sum(len(event.block_hashes) for event in self.events if not isinstance(event, BlocksCleared))


@dataclass(frozen=True, slots=True)
class _Block:
    parent: bytes | None
    token_ids: bytes
    cache_salt: str
    lora_name: str
    extra_key: bytes = b""


class KvEventLog(KVConnector):
    """The events of one engine; used on its event loop.

    Args:
        block_size: tokens per block.
        epoch: the engine's epoch; sequence numbers start after it, so that those of successive engines differ.
        max_kept_blocks: maximum number of blocks that all kept batches name; the oldest batches are dropped beyond it.
    """

    def __init__(self, block_size: int, *, epoch: int, max_kept_blocks: int = 16_384) -> None:
        self.block_size = block_size
        self._max_kept_blocks = max_kept_blocks
        self._has_listened = False
        self._cached: dict[bytes, _Block] = {}
        self._pending: list[KvEvent] = []
        self._batches: deque[KvEventBatch] = deque()
        self._num_kept_blocks = 0
        self._last_number = epoch
        self._changed = asyncio.Event()

    # --- reports of the cache ---------------------------------------------------------------------------------------

    def stored(self, request: Request, first: int, end: int) -> None:
        """Note that blocks `first` to `end` (exclusive) of a request are cached."""
        hashes = request.block_hashes
        while first < end and hashes[first] in self._cached:  # another request has computed it, too
            first += 1
        if first == end:
            return
        size = 4 * self.block_size
        token_ids = pack_u32(request.token_ids[first * self.block_size : end * self.block_size])
        salt, lora = request.cache_salt, "" if request.adapter is None else request.adapter.ref.name
        extra_keys = self._extra_keys(request, first, end) if request.payload.media else ()
        run = BlocksStored(hashes[first:end], hashes[first - 1] if first else None, token_ids, salt, lora, extra_keys)
        parent = run.parent
        for index, block_hash in enumerate(run.block_hashes):
            extra_key = run.extra_keys[index] if run.extra_keys else b""
            self._cached[block_hash] = _Block(parent, token_ids[index * size : (index + 1) * size], salt, lora, extra_key)
            parent = block_hash
        self._add(run)

    def _extra_keys(self, request: Request, first: int, end: int) -> Sequence[bytes]:
        blocks = (media_of_block(request, index, self.block_size) for index in range(first, end))
        return _present([b"".join(span.identifier.encode() + b"\0" for span in media) for media in blocks])

    def removed(self, key: bytes) -> None:
        """Note that a block was removed from the cache."""
        if self._cached.pop(key, None) is None:
            return
        last = self._pending[-1] if self._pending else None
        if isinstance(last, BlocksRemoved):
            last.block_hashes.append(key)
        else:
            self._add(BlocksRemoved([key]))

    def cleared(self) -> None:
        """Note that the cache is empty."""
        if self._cached:
            self._cached.clear()
            self._add(BlocksCleared())

    def _add(self, event: KvEvent) -> None:
        if not self._has_listened:
            return
        if not self._pending:
            # A step is one turn of the event loop: this runs when it is over.
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(event)

    def _flush(self) -> None:
        """Make a batch of the pending events, and drop the oldest batches if too many blocks are kept."""
        if not self._pending:
            return
        self._last_number += 1
        batch, self._pending = KvEventBatch(self._last_number, self._pending), []
        self._batches.append(batch)
        self._num_kept_blocks += batch.num_blocks
        while self._num_kept_blocks > self._max_kept_blocks:
            self._num_kept_blocks -= self._batches.popleft().num_blocks
        self._changed.set()
        self._changed = asyncio.Event()

    # --- subscribers ------------------------------------------------------------------------------------------------

    async def follow(self, start: int) -> AsyncIterator[KvEventBatch]:
        """Yield the batches from number `start` on, after a snapshot if they are not kept; never ends."""
        self._has_listened = True
        self._flush()
        wanted = start
        while True:
            oldest = self._last_number - len(self._batches) + 1
            if not oldest <= wanted <= self._last_number + 1:
                wanted = self._last_number + 1
                for batch in self._snapshot():
                    yield batch
            elif wanted <= self._last_number:
                yield self._batches[wanted - oldest]
                wanted += 1
            else:
                await self._changed.wait()

    def _snapshot(self) -> Iterable[KvEventBatch]:
        """Yield the cached content in messages, the first of which tells the subscriber to clear its content."""
        number, blocks = self._last_number, iter(list(self._cached.items()))
        yield KvEventBatch(number, [BlocksCleared()], is_snapshot=True)
        while chunk := list(islice(blocks, _SNAPSHOT_BLOCKS)):
            yield KvEventBatch(number, list(_runs(chunk)), is_snapshot=True)


def _runs(blocks: Iterable[tuple[bytes, _Block]]) -> Iterable[BlocksStored]:
    """Join consecutive blocks to events."""
    run: list[tuple[bytes, _Block]] = []
    for block_hash, block in blocks:
        if run and block.parent != run[-1][0]:
            yield _joined(run)
            run = []
        run.append((block_hash, block))
    if run:
        yield _joined(run)


def _joined(run: Sequence[tuple[bytes, _Block]]) -> BlocksStored:
    first = run[0][1]
    hashes = [block_hash for block_hash, _ in run]
    token_ids, extra_keys = b"".join(block.token_ids for _, block in run), [block.extra_key for _, block in run]
    return BlocksStored(hashes, first.parent, token_ids, first.cache_salt, first.lora_name, _present(extra_keys))


def _present(extra_keys: Sequence[bytes]) -> Sequence[bytes]:
    """Return the extra keys of blocks, or nothing if no block has one."""
    return extra_keys if any(extra_keys) else ()
