"""PrefixMemory: the prefixes that one engine core holds, as far as this frontend knows.

Two sources: the prompts that this frontend routed to the engine core, and the engine core's KV events, which also report
prompts of other frontends, generated tokens and evictions. Without events, the first source alone is the usual approximation.
Bounded by the engine core's capacity; the least recently used prefix is forgotten first. Knows no engine names.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from tetrad.frontend.routing.block_keys import block_keys, first_parent

_MAX_BLOCKS = 65_536
"""About 15 MB, with events; a million tokens at 16 a block."""


class PrefixMemory:
    """The blocks of one engine, by this process's keys.

    Attributes:
        block_size: tokens per block; 0 before the engine has said.
        num_new: new prefixes that it got, from any frontend, since it is known; the router counts this frontend's.
    """

    def __init__(self) -> None:
        self.block_size = 0
        self.num_new = 0
        self._max_blocks = 0
        # The engine's own name of each, where it has told. The one to forget first comes first.
        self._held: OrderedDict[int, bytes | None] = OrderedDict()
        self._key_of: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, block_size: int, num_blocks: int) -> None:
        """Start over with an engine that has so many blocks, all empty."""
        self.block_size, self._max_blocks = block_size, min(num_blocks, _MAX_BLOCKS)
        self.clear()

    def num_held(self, keys: Iterable[int]) -> int:
        """Return the number of blocks that the engine holds from the first on, without a gap."""
        held, count = self._held, 0
        for key in keys:
            if key not in held:
                break
            count += 1
        return count

    def expect(self, keys: Sequence[int]) -> None:
        """Note that a prompt is on its way to the engine, which will hold its blocks."""
        held = self._held
        # The head last: a returning prompt needs it more than the tail.
        for key in reversed(keys):
            if key in held:
                held.move_to_end(key)
            else:
                held[key] = None
        self._shrink()

    def store(
        self, hashes: Sequence[bytes], parent: bytes | None, token_ids: bytes, cache_salt: str, *, is_new: bool = True
    ) -> None:
        """Take blocks that the engine says it holds, each the parent of the next.

        Args:
            hashes: its names for them.
            parent: its name for the one before them; None: they begin a sequence.
            token_ids: u32 column.
            cache_salt: of blocks that begin a sequence.
            is_new: whether it was routed them just now; the age of a snapshot's blocks is unknown.
        """
        key = first_parent(cache_salt) if parent is None else self._key_of.get(parent)
        if key is None:
            return  # a block of a forgotten prefix: no prompt can reach it
        for place, (name, own) in enumerate(zip(hashes, block_keys(token_ids, self.block_size, key), strict=False)):
            self.num_new += is_new and parent is None and place == 0 and own not in self._held
            self._held[own] = name
            self._held.move_to_end(own)
            self._key_of[name] = own
        self._shrink()

    def remove(self, hashes: Iterable[bytes]) -> None:
        """Take back blocks that the engine says it no longer holds."""
        for name in hashes:
            key = self._key_of.pop(name, None)
            if key is not None:
                self._held.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self._key_of.clear()

    def _shrink(self) -> None:
        while len(self._held) > self._max_blocks:
            _, name = self._held.popitem(last=False)
            if name is not None:
                self._key_of.pop(name, None)
