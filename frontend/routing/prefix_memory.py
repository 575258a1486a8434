"""PrefixMemory: tracks the prefixes that one engine core probably has in its cache.

Two sources: the prompts that this frontend routed to the engine core, and the engine core's KV events, which also report
prompts of other frontends, generated tokens and evictions. Without events, the first source alone is an approximation. Bounded
by the engine core's capacity; the least recently used prefix is dropped first. Knows no names of engine cores.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from tetrad.frontend.routing.block_keys import block_keys, first_parent

_MAX_BLOCKS = 65_536
"""Maximum number of blocks: about 15 MB with events; a million tokens at 16 tokens per block."""


class PrefixMemory:
    """The blocks of one engine core, by this process's keys.

    Attributes:
        block_size: tokens per block; 0 before the first connection.
        num_new: number of new prefixes that the engine core received from any frontend; the router counts this frontend's.
    """

    def __init__(self) -> None:
        self.block_size = 0
        self.num_new = 0
        self._max_blocks = 0
        # Key -> the engine core's own hash of the block, None if not reported; the least recently used first.
        self._held: OrderedDict[int, bytes | None] = OrderedDict()
        self._key_of: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, block_size: int, num_blocks: int) -> None:
        """Clear the memory for a new engine core with `num_blocks` empty blocks."""
        self.block_size, self._max_blocks = block_size, min(num_blocks, _MAX_BLOCKS)
        self.clear()

    def num_held(self, keys: Iterable[int]) -> int:
        """Return the number of consecutive blocks, from the first on, that the engine core holds."""
        held, count = self._held, 0
        for key in keys:
            if key not in held:
                break
            count += 1
        return count

    def num_reported(self, keys: Iterable[int]) -> int:
        """Return the number of consecutive blocks, from the first on, that KV events report: they are there already."""
        held, count = self._held, 0
        for key in keys:
            if held.get(key) is None:
                break
            count += 1
        return count

    def expect(self, keys: Sequence[int]) -> None:
        """Record that the engine core will hold the blocks of a prompt that is being sent."""
        held = self._held
        # The first blocks are marked as used last, because a repeated prompt needs them more than the later blocks.
        for key in reversed(keys):
            if key in held:
                held.move_to_end(key)
            else:
                held[key] = None
        self._shrink()

    def store(
        self,
        hashes: Sequence[bytes],
        parent: bytes | None,
        token_ids: bytes,
        cache_salt: str,
        *,
        extra_keys: Sequence[bytes] = (),
        is_new: bool = True,
    ) -> None:
        """Add blocks that the engine core reports as stored, each the parent of the next.

        Args:
            hashes: the engine core's hashes of the blocks.
            parent: its hash of the block before them; None: the first block starts a prompt.
            token_ids: the tokens as a u32 column.
            cache_salt: salt of the blocks, used if the first block starts a prompt.
            extra_keys: the images in each block; see `media_keys`. Empty: there are none.
            is_new: whether the blocks were stored just now; the age of a snapshot's blocks is unknown.
        """
        key = first_parent(cache_salt) if parent is None else self._key_of.get(parent)
        if key is None:
            return  # a block of a dropped prefix: no prompt can match it
        keys = block_keys(token_ids, self.block_size, key, extra_keys)
        for place, (name, own) in enumerate(zip(hashes, keys, strict=False)):
            self.num_new += is_new and parent is None and place == 0 and own not in self._held
            self._held[own] = name
            self._held.move_to_end(own)
            self._key_of[name] = own
        self._shrink()

    def remove(self, hashes: Iterable[bytes]) -> None:
        """Remove blocks that the engine core reports as evicted."""
        for name in hashes:
            key = self._key_of.pop(name, None)
            if key is not None:
                self._held.pop(key, None)

    def clear(self) -> None:
        """Remove all blocks."""
        self._held.clear()
        self._key_of.clear()

    def _shrink(self) -> None:
        while len(self._held) > self._max_blocks:
            _, name = self._held.popitem(last=False)
            if name is not None:
                self._key_of.pop(name, None)
