"""The entries of the encoder cache: their room, their references and their order of leaving."""

import pytest

from tests.engine_core_svc.media.encoder_model import image
from tetrad.engine_core_svc.media.encoder_cache import EncoderCache


@pytest.fixture
def cache():
    return EncoderCache(10)


def ready(cache, identifier, num_embeds):
    """Return the entry of an item that is encoded."""
    entry = cache.allocate(image(identifier, 0, num_embeds))
    cache.note_encoded(identifier)
    return entry


def test_an_item_is_found_under_its_identifier_while_it_is_encoded_and_afterwards(cache):
    entry = cache.allocate(image("a", 0, 4))

    assert (cache.find(image("a", 7, 4)), entry.is_ready, cache.num_encoding, cache.num_used) == (entry, False, 1, 4)
    cache.note_encoded("a")
    assert (cache.find(image("a", 7, 4)), entry.is_ready, cache.num_encoding, len(cache)) == (entry, True, 0, 1)


def test_an_item_is_allocated_once(cache):
    cache.allocate(image("a", 0, 4))

    assert cache.allocate(image("a", 0, 4)) is None
    assert cache.num_used == 4


def test_the_whole_room_can_be_used(cache):
    assert cache.allocate(image("a", 0, 10)) is not None


def test_unused_entries_leave_in_the_order_in_which_they_lost_their_last_user(cache):
    for name in "ab":
        cache.use(ready(cache, name, 4), key=1)
    cache.end_use("b", 1)
    cache.end_use("a", 1)

    assert cache.allocate(image("c", 0, 5)) is None
    assert (cache.has_dropped, cache.take_dropped(0), cache.has_dropped) == (True, ["b"], False)


def test_an_entry_is_used_again_before_it_leaves(cache):
    entry = ready(cache, "a", 8)
    cache.use(entry, key=1)

    assert cache.allocate(image("b", 0, 4)) is None
    assert not cache.has_dropped


def test_a_reset_drops_what_nobody_reads_at_once_and_the_rest_when_it_is_read(cache):
    ready(cache, "unused", 2)
    cache.use(ready(cache, "used", 2), key=1)
    cache.allocate(image("encoding", 0, 2))

    cache.reset()
    dropped = cache.take_dropped(0)
    cache.note_encoded("encoding")
    cache.end_use("used", 1)

    assert (dropped, cache.take_dropped(1)) == (["unused"], ["used"])
    assert cache.find(image("encoding", 0, 2)) is not None


def test_an_entry_with_two_users_stays_until_both_have_read_it(cache):
    entry = ready(cache, "a", 8)
    cache.use(entry, key=1)
    cache.use(entry, key=2)
    cache.end_use("a", 1)
    cache.allocate(image("b", 0, 4))
    assert not cache.has_dropped

    cache.end_use("a", 2)
    cache.allocate(image("b", 0, 4))
    assert cache.take_dropped(0) == ["a"]


def test_the_room_of_a_dropped_entry_is_free_when_the_plan_that_names_it_has_returned(cache):
    ready(cache, "a", 8)
    cache.allocate(image("b", 0, 4))
    cache.take_dropped(step_id=3)

    cache.note_returned(2)
    assert (cache.allocate(image("b", 0, 4)), cache.num_used) == (None, 8)
    cache.note_returned(3)
    assert (cache.allocate(image("b", 0, 4)) is not None, cache.num_used) == (True, 4)


def test_a_dropped_item_is_not_encoded_again_before_the_worker_has_dropped_it(cache):
    ready(cache, "a", 8)
    cache.allocate(image("b", 0, 3))

    assert (cache.find(image("a", 0, 8)), cache.allocate(image("a", 0, 1))) == (None, None)
    cache.take_dropped(0)
    cache.note_returned(0)
    assert cache.allocate(image("a", 0, 8)) is not None


def test_no_more_entries_leave_than_are_needed(cache):
    for name in "abc":
        ready(cache, name, 3)

    cache.allocate(image("d", 0, 4))
    cache.allocate(image("d", 0, 4))

    assert cache.take_dropped(0) == ["a"]


def test_nothing_leaves_for_an_item_that_finds_no_room_then(cache):
    cache.use(ready(cache, "a", 5), key=1)
    ready(cache, "b", 4)

    assert cache.allocate(image("c", 0, 6)) is None
    assert not cache.has_dropped


def test_entries_to_keep_do_not_leave(cache):
    ready(cache, "a", 5)
    ready(cache, "b", 5)

    cache.allocate(image("c", 0, 5), keep={"a"})

    assert cache.take_dropped(0) == ["b"]


def test_an_entry_does_not_leave_while_it_is_encoded(cache):
    cache.allocate(image("a", 0, 8))

    assert cache.allocate(image("b", 0, 4)) is None
    assert not cache.has_dropped


def test_the_room_of_a_failed_item_is_free_at_once(cache):
    entry = cache.allocate(image("a", 0, 8))

    assert cache.note_failed("a") is entry
    assert (cache.num_used, cache.num_encoding, cache.find(image("a", 0, 8))) == (0, 0, None)


@pytest.mark.parametrize("other", [{"content_hash": "another"}, {"length": 7, "num_embeds": 7}], ids=["content", "size"])
def test_an_identifier_that_is_used_again_for_another_item_is_encoded_anew(cache, other):
    ready(cache, "a", 8)

    assert cache.find(image("a", 0, **({"length": 8} | other))) is None
    assert cache.take_dropped(0) == ["a"]


def test_what_is_not_there_can_be_returned(cache):
    cache.end_use("a", 1)
    ready(cache, "a", 4)
    cache.end_use("a", 1)

    assert len(cache) == 1
