"""The blocks that a draft model has written, in both tiers."""

import numpy as np
import pytest

from tetrad.worker_svc.core.plan import CachedRequests, SchedulerOutput
from tetrad.worker_svc.runner.written_blocks import WrittenBlocks

NONE = np.empty(0, np.int64)


def moves(**pairs: tuple[list[int], list[int]]) -> SchedulerOutput:
    columns = {name: tuple(np.array(column, np.int64) for column in pair) for name, pair in pairs.items()}
    return SchedulerOutput(1, [], CachedRequests(NONE, NONE, NONE, NONE, NONE[None]), **columns)


@pytest.fixture
def written() -> WrittenBlocks:
    written = WrittenBlocks()
    written.add([4, 5, 7])
    return written


def test_the_first_blocks_of_a_table_count_up_to_one_that_is_not_written(written):
    assert [written.num_first(table) for table in ([4, 5, 6, 7], [4, 5], [6, 4], [])] == [2, 2, 0, 0]


def test_a_block_that_gets_other_tokens_is_not_written(written):
    written.discard([5, 6])

    assert written.num_first([4, 5]) == 1


def test_a_block_that_comes_back_from_the_second_tier_is_what_it_was(written):
    written.move(moves(swap_out=([5, 6], [0, 1])))
    written.discard([5, 6])
    written.move(moves(swap_in=([1, 0], [7, 8])))

    assert [written.num_first([block]) for block in (7, 8)] == [0, 1]


def test_a_plan_swaps_out_before_it_swaps_in(written):
    written.move(moves(swap_out=([5], [0]), swap_in=([0], [9])))

    assert written.num_first([9]) == 1
