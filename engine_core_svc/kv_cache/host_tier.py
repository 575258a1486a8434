"""Host tier: keeps evicted blocks in the worker's host memory, and restores them when a request has their prefix.

A connector whose copies are part of the plan that is being made. Knows keys and block ids. The worker copies to the host first,
then to the device, then runs the plan's step, so one plan may save a block's content and reuse the block. Invariant: a host
block that a plan reads or writes is not reused for another content in this plan.
"""

from collections import OrderedDict
from collections.abc import Sequence

from tetrad.engine_core_svc.core.plan import SchedulerOutput, Swaps
from tetrad.engine_core_svc.kv_cache.connector import ConnectorStats, KVConnector


class HostTier(KVConnector):
    """Blocks in host memory; the least recently used one is replaced first. Restored contents stay in host memory, too.

    Args:
        num_blocks: number of host blocks, with ids 0 .. num_blocks - 1.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._num_saved = self._num_loaded = 0
        self._block_of: OrderedDict[bytes, int] = OrderedDict()  # the least recently used first
        self._free = list(range(num_blocks))[::-1]
        self._held: set[bytes] = set()
        self._swaps = Swaps()

    def evicted(self, key: bytes, block: int) -> bytes | None:
        """Copy the content to the host unless it is there already; see KVConnector.

        The content itself is lost if the plan being made needs all host blocks.
        """
        if key in self._block_of:
            self._block_of.move_to_end(key)
            return None
        lost = None
        if not self._free:
            lost = next(iter(self._block_of), key)
            # The blocks of this plan were used last: if the least recently used one is held, the plan needs all blocks.
            if lost == key or lost in self._held:
                return key
            self._free.append(self._block_of.pop(lost))
        self._block_of[key] = host_block = self._free.pop()
        self._held.add(key)
        self._swaps.out.append((block, host_block))
        self._num_saved += 1
        return lost

    def removed(self, key: bytes) -> None:
        """Forget this content, if it is in host memory."""
        if key in self._block_of:
            self._free.append(self._block_of.pop(key))

    def cleared(self) -> None:
        """Forget all contents, and the copies that no plan has yet."""
        self._block_of.clear()
        self._free = list(range(self._num_blocks))[::-1]
        self.take_swaps()

    def has(self, key: bytes) -> bool:
        """Return whether this content is in host memory."""
        return key in self._block_of

    def hold(self, keys: Sequence[bytes]) -> None:
        """Mark these contents as just used, and keep their host blocks until the plan is made."""
        for key in keys:
            self._block_of.move_to_end(key)
            self._held.add(key)

    def load(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Copy host blocks to blocks of the device."""
        self._swaps.back.extend(zip((self._block_of[key] for key in keys), blocks, strict=True))
        self._num_loaded += len(blocks)

    def build_connector_meta(self, plan: SchedulerOutput) -> None:
        """Add the copies to the plan."""
        plan.swaps = self.take_swaps()

    def take_swaps(self) -> Swaps:
        """Return the copies since the last call, and hold no contents any more."""
        swaps, self._swaps = self._swaps, Swaps()
        self._held.clear()
        return swaps

    def stats(self) -> ConnectorStats:
        """Return its capacity, use and copies."""
        return ConnectorStats(self._num_blocks, len(self._block_of), self._num_saved, self._num_loaded)
