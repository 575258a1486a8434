"""Written blocks: the blocks, in both tiers, that have a draft model's keys and values of all their tokens.

Used by DraftProgress, on the compute thread. The prefix cache knows only which blocks the target model has written.
"""

from collections.abc import Iterable, Sequence

from tetrad.worker_svc.core.plan import Ints, SchedulerOutput


class WrittenBlocks:
    """The written blocks of one draft model."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()
        self._host_blocks: set[int] = set()

    def move(self, plan: SchedulerOutput) -> None:
        """Follow the blocks that a plan copies between the tiers, before its step; blocks are swapped out first."""
        _copy(plan.swap_out, self._blocks, self._host_blocks)
        _copy(plan.swap_in, self._host_blocks, self._blocks)

    def add(self, blocks: Iterable[int]) -> None:
        """Note that blocks were written."""
        self._blocks.update(blocks)

    def discard(self, blocks: Iterable[int]) -> None:
        """Note that blocks get other tokens."""
        self._blocks.difference_update(blocks)

    def num_first(self, blocks: Sequence[int]) -> int:
        """Return how many blocks at the start of a table are written."""
        return next((place for place, block in enumerate(blocks) if block not in self._blocks), len(blocks))


def _copy(moves: tuple[Ints, Ints] | None, sources: set[int], targets: set[int]) -> None:
    for source, target in zip(*(column.tolist() for column in moves), strict=True) if moves is not None else ():
        if source in sources:
            targets.add(target)
        else:
            targets.discard(target)
