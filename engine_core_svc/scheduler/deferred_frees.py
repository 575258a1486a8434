"""DeferredFrees: frees the blocks of an ended request when the last plan that names them has returned.

Blocks that another engine core will read are kept until it has read them. Called by RequestStates, by Results and when
transfers end. Knows step ids, block ids and requests' keys; the result of a step implies that all earlier steps have returned.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence


class DeferredFrees:
    """Block tables that stay allocated until a step has returned.

    Args:
        release: frees a block table.
    """

    def __init__(self, release: Callable[[Sequence[int]], None]) -> None:
        self._release = release
        self._waiting: deque[tuple[int, Sequence[int]]] = deque()
        self._kept: dict[int, tuple[int, Sequence[int]]] = {}
        self.last_returned_step = -1

    def __iter__(self) -> Iterator[Sequence[int]]:
        """Iterate over the block tables whose release is deferred."""
        return (block_ids for _, block_ids in (*self._waiting, *self._kept.values()))

    @property
    def num_kept(self) -> int:
        """The number of ended requests whose blocks another engine core may read."""
        return len(self._kept)

    def of_steps(self) -> Iterator[Sequence[int]]:
        """Iterate over the block tables that only wait for a step: nobody will read them."""
        return (block_ids for _, block_ids in self._waiting)

    def add(self, step_id: int, block_ids: Sequence[int]) -> None:
        """Free a block table when step `step_id`, the last that names it, has returned (-1: none); at once if it has."""
        if step_id <= self.last_returned_step:
            self._release(block_ids)
        else:
            self._waiting.append((step_id, block_ids))

    def keep(self, key: int, step_id: int, block_ids: Sequence[int]) -> None:
        """Keep the block table of a request until another engine core has read it."""
        self._kept[key] = step_id, block_ids

    def note_sent(self, key: int) -> None:
        """Free a request's kept blocks, which have been read; unknown keys are ignored."""
        if key in self._kept:
            self.add(*self._kept.pop(key))

    def note_returned(self, step_id: int) -> None:
        """Free the block tables that waited for this step or an earlier one."""
        self.last_returned_step = step_id
        for _ in range(len(self._waiting)):
            self.add(*self._waiting.popleft())

    def clear(self) -> None:
        """Forget all block tables: the worker is lost, and its blocks with it."""
        self._waiting.clear()
        self._kept.clear()
