"""DeferredFrees: frees the blocks of an ended request when the last plan that names them has returned.

Called by the states and by results. Knows step ids and block ids; a step's result means that all steps before it have returned
too.
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
        self.last_returned_step = -1

    def __iter__(self) -> Iterator[Sequence[int]]:
        """Iterate over the block tables whose release is deferred."""
        return (block_ids for _, block_ids in self._waiting)

    def add(self, step_id: int, block_ids: Sequence[int]) -> None:
        """Take a block table whose last plan is `step_id` (-1: none); it may be given back at once."""
        if step_id <= self.last_returned_step:
            self._release(block_ids)
        else:
            self._waiting.append((step_id, block_ids))

    def note_returned(self, step_id: int) -> None:
        """Give back what waited for this step or an earlier one."""
        self.last_returned_step = step_id
        for _ in range(len(self._waiting)):
            self.add(*self._waiting.popleft())

    def clear(self) -> None:
        """Forget everything: the blocks are gone."""
        self._waiting.clear()
