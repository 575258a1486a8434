"""Second tier: keeps evicted blocks in host memory of the worker, and restores them when a request has their prefix.

Called by the block pool and the cache manager while a plan is made. Knows hashes and block ids. Copies belong to the plan that
is made: those out come before those in, and both before the plan's step, so a block may leave and another take its place at
once. Invariant: a host block that the plan reads or writes is not given to another block by the same plan.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from tetrad.engine_core_svc.core.plan import Swaps


class SecondTier(Protocol):
    """Where evicted blocks go.

    Attributes:
        num_blocks: that it has.
        num_swapped_out, num_swapped_in: blocks copied, since start.
    """

    num_blocks: int
    num_swapped_out: int
    num_swapped_in: int

    @property
    def num_used(self) -> int:
        """Blocks that hold something."""

    def keep(self, block_hash: bytes, block: int) -> bytes | None:
        """Take a block's content before it is written over; return the hash that is lost by that, maybe its own, if any."""

    def has(self, block_hash: bytes) -> bool:
        """Return whether this content is here."""

    def hold(self, block_hash: bytes) -> int:
        """Return the host block with this content, which is here; it stays until the plan is made."""

    def bring_back(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy host blocks that are held to blocks of the device."""

    def take_swaps(self) -> Swaps:
        """Return the copies since the last call: the plan is made."""

    def forget(self, block_hash: bytes) -> None:
        """Let this content go, if it is here; not while a plan is made."""

    def clear(self) -> None:
        """Forget everything."""


class NoSecondTier:
    """Keeps nothing."""

    num_blocks = num_swapped_out = num_swapped_in = num_used = 0

    def keep(self, block_hash: bytes, block: int) -> bytes | None:  # noqa: ARG002 - of the protocol
        """Let it go."""
        return block_hash

    def has(self, block_hash: bytes) -> bool:  # noqa: ARG002 - of the protocol
        """Return False."""
        return False

    def hold(self, block_hash: bytes) -> int:
        """Raise: nothing is here."""
        raise KeyError(block_hash)

    def bring_back(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Do nothing: nothing was held."""

    def take_swaps(self) -> Swaps:
        """Return none."""
        return Swaps()

    def forget(self, block_hash: bytes) -> None:
        """Do nothing: nothing is here."""

    def clear(self) -> None:
        """Do nothing."""


class HostTier:
    """Blocks in host memory, the least recently used of which makes room. What is brought back stays here as well.

    Args:
        num_blocks: ids are 0 .. num_blocks - 1.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_swapped_out = self.num_swapped_in = 0
        self._block_of: OrderedDict[bytes, int] = OrderedDict()  # the least recently used first
        self._free = list(range(num_blocks))[::-1]
        self._held: set[bytes] = set()
        self._swaps = Swaps()

    @property
    def num_used(self) -> int:
        """Blocks that hold something."""
        return len(self._block_of)

    def keep(self, block_hash: bytes, block: int) -> bytes | None:
        """Copy it out unless it is here already; it is lost itself where the plan being made needs all host blocks."""
        if block_hash in self._block_of:
            self._block_of.move_to_end(block_hash)
            return None
        lost = None
        if not self._free:
            lost = next(iter(self._block_of), block_hash)
            # Those that this plan uses were used last: if the least recently used one is held, it needs all of them.
            if lost == block_hash or lost in self._held:
                return block_hash
            self._free.append(self._block_of.pop(lost))
        self._block_of[block_hash] = host_block = self._free.pop()
        self._held.add(block_hash)
        self._swaps.out.append((block, host_block))
        self.num_swapped_out += 1
        return lost

    def has(self, block_hash: bytes) -> bool:
        """Return whether this content is here."""
        return block_hash in self._block_of

    def hold(self, block_hash: bytes) -> int:
        """Return its host block, used just now."""
        self._block_of.move_to_end(block_hash)
        self._held.add(block_hash)
        return self._block_of[block_hash]

    def bring_back(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy host blocks that are held to blocks of the device."""
        self._swaps.back.extend(zip(host_blocks, blocks, strict=True))
        self.num_swapped_in += len(blocks)

    def take_swaps(self) -> Swaps:
        """Return the copies since the last call, and hold nothing any more."""
        swaps, self._swaps = self._swaps, Swaps()
        self._held.clear()
        return swaps

    def forget(self, block_hash: bytes) -> None:
        """Let this content go, if it is here."""
        if block_hash in self._block_of:
            self._free.append(self._block_of.pop(block_hash))

    def clear(self) -> None:
        """Forget everything, copies that no plan has taken included."""
        self._block_of.clear()
        self._free = list(range(self.num_blocks))[::-1]
        self.take_swaps()
