"""Encoder cache: an item stays until the plan that frees it, whatever the order in which steps run and items are encoded."""

import numpy as np

from tetrad.worker_svc.core.media import EncodedItem
from tetrad.worker_svc.media.encoder_cache import EncoderCache

ROWS, AGAIN = (EncodedItem(np.full((2, 4), value, np.float32)) for value in (1, 2))


def opened() -> EncoderCache:
    cache = EncoderCache()
    cache.restart(1)
    return cache


def test_an_item_stays_until_it_is_freed():
    cache = opened()
    cache.put(1, "a", ROWS, after_step=0)
    cache.free(("b",), step_id=1)
    assert cache.get("a") is ROWS

    cache.free(("a",), step_id=2)

    assert cache.get("a") is None
    assert len(cache) == 0


def test_a_step_does_not_free_an_item_that_was_requested_again_behind_its_plan():
    cache = opened()
    cache.put(1, "a", ROWS, after_step=0)
    cache.put(1, "a", AGAIN, after_step=5)

    cache.free(("a",), step_id=5)

    assert cache.get("a") is AGAIN


def test_items_of_an_earlier_stream_are_neither_kept_nor_stored():
    cache = opened()
    cache.put(1, "a", ROWS, after_step=0)

    cache.restart(2)
    cache.put(1, "b", ROWS, after_step=0)

    assert len(cache) == 0
