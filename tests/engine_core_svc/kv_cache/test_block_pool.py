"""The free list, reference counts and hashes of the block pool."""

import pytest

from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK, BlockPool, FreeBlockQueue


def test_queue_starts_in_id_order_and_pops_from_the_left():
    queue = FreeBlockQueue(4)

    assert queue.popleft() == 0
    assert queue.to_list() == [1, 2, 3]
    assert len(queue) == 3


def test_queue_gives_up_a_block_from_the_middle():
    queue = FreeBlockQueue(5)

    queue.remove(2)

    assert queue.to_list() == [0, 1, 3, 4]


def test_queue_takes_blocks_back_at_either_end():
    queue = FreeBlockQueue(3)
    first, second = queue.popleft(), queue.popleft()

    queue.append(first)
    queue.prepend(second)

    assert queue.to_list() == [1, 2, 0]


def test_an_empty_queue_says_so():
    queue = FreeBlockQueue(1)
    queue.popleft()

    with pytest.raises(IndexError, match="no free block"):
        queue.popleft()


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5)

    assert NULL_BLOCK not in pool.allocate(4)
    assert pool.num_free == 0
    assert pool.usage == 1.0


def test_a_hash_is_evicted_when_its_block_is_handed_out_again_not_when_it_is_freed():
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.cache(block, b"h")

    pool.free([block])
    assert pool.find(b"h") == block

    pool.allocate(1)
    assert pool.find(b"h") is None


def test_touching_a_free_block_takes_it_out_of_the_queue():
    pool = BlockPool(3)
    [block] = pool.allocate(1)
    pool.cache(block, b"h")
    pool.free([block])

    pool.touch([block])

    assert pool.free_blocks() == [2]
    assert pool.num_references(block) == 1


def test_unhashed_blocks_are_reused_first_and_hashed_ones_last():
    pool = BlockPool(6)
    blocks = pool.allocate(3)
    pool.cache(blocks[0], b"a")
    pool.cache(blocks[1], b"b")

    pool.free(list(reversed(blocks)))

    assert pool.free_blocks() == [3, 4, 5, 2, 1]


def test_two_blocks_may_hold_the_same_content_and_a_hit_takes_the_first():
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.cache(first, b"h")
    pool.cache(second, b"h")

    pool.free([first])
    pool.allocate(2)  # evicts the first

    assert pool.find(b"h") == second


def test_golden_free_list_of_two_requests_that_share_three_blocks():
    """vLLM's vector: [1,2,3,4p] and [1,2,3,5p]; free the first, then the second."""
    pool = BlockPool(11)
    shared = pool.allocate(3)
    for block in shared:
        pool.cache(block, b"%d" % block)
    first = [*shared, *pool.allocate(1)]
    pool.touch(shared)
    second = [*shared, *pool.allocate(1)]

    pool.free(list(reversed(first)))
    pool.free(list(reversed(second)))

    assert pool.free_blocks() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


def test_blocks_count_as_cached_and_evicted_only_where_content_enters_or_leaves():
    pool = BlockPool(4)
    first, second, third = pool.allocate(3)
    counts = [(pool.num_cached, pool.num_evicted)]

    pool.cache(first, b"a")
    pool.cache(first, b"again")  # has content already
    pool.cache(second, b"b")
    counts.append((pool.num_cached, pool.num_evicted))
    pool.free([third, second, first])
    pool.allocate(1)  # the one without content
    counts.append((pool.num_cached, pool.num_evicted))
    pool.allocate(2)
    counts.append((pool.num_cached, pool.num_evicted))

    assert counts == [(0, 0), (2, 0), (2, 0), (2, 2)]
