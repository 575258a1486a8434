"""DeferredFrees: frees the blocks of an ended request when the last plan that names them has returned.

Blocks that another engine core is to read are kept until it has read them. Called by the states, by results and when transfers
end. Knows step ids, block ids and requests' keys; a step's result means that all steps before it have returned too.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence


class DeferredFrees:
    """Blocks that wait for a step.

    Args:
        release: takes a block table back.
    """

    def __init__(self, release: Callable[[Sequence[int]], None]) -> None:
        self._release = release
        self._waiting: deque[tuple[int, Sequence[int]]] = deque()
        self._kept: dict[int, tuple[int, Sequence[int]]] = {}
        self.last_returned_step = -1

    def __iter__(self) -> Iterator[Sequence[int]]:
        """Iterate over the block tables whose release is deferred."""
        return (block_ids for _, block_ids in (*self._waiting, *self._kept.values()))

    def add(self, step_id: int, block_ids: Sequence[int]) -> None:
        """Take a block table whose last plan is `step_id` (-1: none); it may be given back at once."""
        if step_id <= self.last_returned_step:
            self._release(block_ids)
        else:
            self._waiting.append((step_id, block_ids))

    def keep(self, key: int, step_id: int, block_ids: Sequence[int]) -> None:
        """Take the block table of a request that another engine core is still to read."""
        self._kept[key] = step_id, block_ids

    def note_sent(self, key: int) -> None:
        """A request's blocks have been read; unknown ones are ignored."""
        if key in self._kept:
            self.add(*self._kept.pop(key))

    def note_returned(self, step_id: int) -> None:
        """Give back what waited for this step or an earlier one."""
        self.last_returned_step = step_id
        for _ in range(len(self._waiting)):
            self.add(*self._waiting.popleft())

    def clear(self) -> None:
        """Forget everything: the blocks are gone."""
        self._waiting.clear()
        self._kept.clear()
