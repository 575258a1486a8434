"""The memory of an engine core's prefixes, from routed prompts and from KV events."""

import pytest

from tetrad.frontend.routing.block_keys import block_keys, first_parent
from tetrad.frontend.routing.prefix_memory import PrefixMemory
from tetrad.services.rpc.columns import pack_u32

BLOCK_SIZE = 4


@pytest.fixture
def memory():
    memory = PrefixMemory()
    memory.begin(BLOCK_SIZE, num_blocks=8)
    return memory


def column(first, num_blocks):
    return pack_u32(range(first, first + num_blocks * BLOCK_SIZE))


def keys(first, num_blocks, salt=""):
    return list(block_keys(column(first, num_blocks), BLOCK_SIZE, first_parent(salt)))


def names(first, num_blocks):
    return [b"block %d" % number for number in range(first, first + num_blocks)]


def test_a_prompt_that_was_sent_is_expected_to_be_held(memory):
    memory.expect(keys(0, 3))

    assert memory.num_held(keys(0, 5)) == 3
    assert memory.num_held(keys(100, 5)) == 0


def test_what_the_engine_stores_is_held_in_all_its_parts(memory):
    memory.store(names(0, 2), None, column(0, 2), "")
    memory.store(names(2, 1), names(1, 1)[0], column(8, 1), "")

    assert memory.num_held(keys(0, 5)) == 3


def test_what_the_engine_removes_ends_the_prefix_there(memory):
    memory.store(names(0, 4), None, column(0, 4), "")

    memory.remove(names(2, 1))

    assert memory.num_held(keys(0, 4)) == 2


def test_what_was_expected_and_then_told_is_removed_by_its_name(memory):
    memory.expect(keys(0, 2))
    memory.store(names(0, 2), None, column(0, 2), "")

    memory.remove(names(0, 2))

    assert memory.num_held(keys(0, 2)) == 0


def test_prefixes_that_others_brought_are_counted_once(memory):
    memory.expect(keys(0, 2))

    memory.store(names(0, 2), None, column(0, 2), "")
    memory.store(names(2, 1), names(1, 1)[0], column(8, 1), "")
    memory.store(names(100, 2), None, column(100, 2), "")
    memory.store(names(100, 2), None, column(100, 2), "")

    assert memory.num_new == 1


def test_prefixes_that_it_has_held_for_long_are_not_counted(memory):
    memory.store(names(0, 2), None, column(0, 2), "", is_new=False)

    assert (memory.num_new, memory.num_held(keys(0, 2))) == (0, 2)


def test_blocks_behind_what_nobody_knows_are_not_taken(memory):
    memory.store(names(2, 2), b"unknown", column(8, 2), "")

    assert len(memory) == 0


def test_salted_blocks_are_held_for_their_salt_alone(memory):
    memory.store(names(0, 2), None, column(0, 2), "tenant")

    assert (memory.num_held(keys(0, 2, "tenant")), memory.num_held(keys(0, 2))) == (2, 0)


def test_no_more_is_remembered_than_the_engine_can_hold_and_heads_are_remembered_longest(memory):
    memory.expect(keys(0, 5))
    memory.expect(keys(100, 5))

    assert len(memory) == 8
    assert memory.num_held(keys(100, 5)) == 5
    assert memory.num_held(keys(0, 5)) == 3


def test_what_is_used_again_is_remembered_longer(memory):
    memory.expect(keys(0, 4))
    memory.expect(keys(100, 4))
    memory.expect(keys(0, 4))

    memory.expect(keys(200, 4))

    assert (memory.num_held(keys(0, 4)), memory.num_held(keys(100, 4))) == (4, 0)


def test_names_are_forgotten_with_their_blocks(memory):
    for first in range(0, 400, 100):
        memory.store(names(first, 4), None, column(first, 4), "")

    assert len(memory) == len(memory._key_of) == 8


def test_another_engine_core_holds_nothing(memory):
    memory.store(names(0, 2), None, column(0, 2), "")

    memory.begin(BLOCK_SIZE, num_blocks=8)

    assert memory.num_held(keys(0, 2)) == 0
