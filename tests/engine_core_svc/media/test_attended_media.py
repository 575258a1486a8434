"""Media of a model with an encoder and a decoder: a request runs as soon as its item is encoded, and keeps it while it runs."""

import pytest

from tests.engine_core_svc.media.attended import NUM_EMBEDS, AttendedEncoder, attended_media, clip
from tests.engine_core_svc.media.test_media_planning import AllBlocks
from tetrad.engine_core_svc.core.plan import TransferEvents
from tetrad.engine_core_svc.core.request import RequestStatus


@pytest.fixture
def make(make_bench):
    """Return a maker of benches with an encoder: items that its cache has room for, and options of benches."""

    def make(num_items=2, **fields):
        bench = make_bench(media=attended_media(num_items), block_size=4, **fields)
        encoder, deliver = AttendedEncoder(bench.scheduler), bench.deliver
        bench.deliver = lambda *args: (encoder.run(bench.in_flight[0][0]), deliver(*args))[1]
        return bench, encoder

    return make


def add(bench, name, prompt=6, **fields):
    return bench.add(prompt, media=[clip(name)], **fields)


def test_a_request_waits_for_its_item_and_others_run(make):
    bench, encoder = make()
    request, other = add(bench, "a"), bench.add(5)

    assert bench.step() == {other.key: 5}
    assert (request.status, encoder.take()) == (RequestStatus.WAITING, ["a"])
    encoder.encode()
    assert bench.step() == {request.key: 6, other.key: 1}


def test_requests_with_one_item_share_it(make):
    bench, encoder = make(num_items=1)
    requests = [add(bench, "a") for _ in range(3)]

    bench.step()
    encoder.encode_all()

    assert bench.step() == {request.key: 6 for request in requests}
    assert encoder.order == ["a"]
    assert bench.scheduler.media.stats.hits == 2


def test_an_item_stays_until_its_last_request_has_ended(make):
    bench, encoder = make(num_items=1)
    first, second = add(bench, "a", max_tokens=3), add(bench, "a", max_tokens=6)
    later = add(bench, "b")
    bench.step()
    encoder.encode_all()

    while not second.is_finished:
        assert bench.scheduler.media.cache.num_used == NUM_EMBEDS
        assert later.status is RequestStatus.WAITING
        bench.step()
    for _ in range(3):
        bench.step()
        encoder.encode_all()

    assert first.is_finished
    assert encoder.order == ["a", "b"]
    assert bench.step() == {later.key: 1}


def test_as_many_items_run_together_as_the_cache_has_room_for(make):
    bench, encoder = make(num_items=2)
    requests = [add(bench, name, max_tokens=50) for name in "abc"]

    for _ in range(4):
        bench.step()
        encoder.encode_all()

    assert [request.status for request in requests] == [RequestStatus.RUNNING, RequestStatus.RUNNING, RequestStatus.WAITING]


def test_a_prompt_is_computed_in_chunks(make):
    bench, encoder = make(max_num_batched_tokens=8)
    request = add(bench, "a", prompt=20)
    bench.step()
    encoder.encode_all()

    assert [bench.step() for _ in range(3)] == [{request.key: 8}, {request.key: 8}, {request.key: 4}]


def test_blocks_are_shared_among_requests_with_equal_items_alone(make):
    bench, encoder = make()
    prompt = list(range(100, 110))
    for name in ("a", "b"):
        add(bench, name, prompt, max_tokens=1)
        bench.step()
        encoder.encode_all()
        assert list(bench.step().values()) == [10]

    add(bench, "a", prompt, max_tokens=1)

    assert list(bench.step().values()) == [2]


def test_a_prompt_of_which_all_is_cached_still_waits_for_its_item(make):
    bench, encoder = make(num_items=1)
    prompt = list(range(100, 110))
    for name in ("a", "b"):
        add(bench, name, prompt, max_tokens=1)
        for _ in range(3):
            bench.step()
            encoder.encode_all()

    request = add(bench, "a", prompt, max_tokens=1)
    for _ in range(3):
        bench.step()
        encoder.encode_all()

    assert encoder.order == ["a", "b", "a"]
    assert (request.is_finished, request.num_cached_tokens) == (True, 8)


def test_an_item_that_cannot_be_encoded_ends_its_requests(make):
    bench, encoder = make()
    requests, other = [add(bench, "a"), add(bench, "a")], add(bench, "b")
    bench.step()
    encoder.take()

    outputs = encoder.fail()

    assert {output.request for output in outputs} == set(requests)
    encoder.encode_all()
    assert bench.step() == {other.key: 6}


def test_a_preempted_request_returns_its_item_and_takes_it_again(make):
    bench, encoder = make(num_items=1)
    request = add(bench, "a", max_tokens=8)
    bench.step()
    encoder.encode_all()
    bench.step()

    bench.scheduler.states.preempt_all()

    assert not any(entry.users for entry in bench.scheduler.media.cache)
    while not request.is_finished:
        bench.step()
    assert encoder.order == ["a"]


def test_after_the_loss_of_the_worker_items_are_encoded_again(make):
    bench, encoder = make()
    request = add(bench, "a", max_tokens=8)
    bench.step()
    encoder.encode_all()
    bench.step()

    bench.in_flight.clear()
    bench.scheduler.forget_worker()
    encoder.cache.clear()
    bench.step()
    encoder.encode_all()

    assert encoder.order == ["a", "a"]
    assert sum(bench.step().values()) == request.num_computed_tokens


def test_a_prompt_from_another_engine_core_needs_its_item_as_well(make):
    """The other engine core has computed its keys and values, but the answer attends to the item."""
    bench, encoder = make(connector=AllBlocks(1, 4))
    request = add(bench, "a", prompt=17)
    bench.step()
    bench.scheduler.note_transfers(TransferEvents(received=[request.key]))

    assert bench.step() == {}
    encoder.encode_all()
    assert bench.step() == {request.key: 1}


def test_a_reset_of_the_cache_leaves_an_item_to_those_that_run(make):
    bench, encoder = make(num_items=1)
    request = add(bench, "a", max_tokens=5)
    bench.step()
    encoder.encode_all()
    bench.step()

    bench.scheduler.media.reset_cache()
    while not request.is_finished:
        bench.step()
    bench.step()

    assert encoder.order == ["a"]
    assert encoder.cache == {}
