"""Media planning: steps request the encoding of images early, and compute no token of an image that is not encoded yet."""

import pytest

from tests.engine_core_svc.kv_cache.fake_remote import RemoteStore
from tests.engine_core_svc.media.encoder_model import EncoderModel, image, media_of, prompt_of
from tetrad.engine_core_svc.core.plan import TransferEvents
from tetrad.engine_core_svc.core.request import RequestStatus


@pytest.fixture
def make(make_bench):
    """Return a maker of benches with an encoder: cache size, and options of benches."""

    def make(size=100, *, splits_prompts=True, **fields):
        step = fields.setdefault("max_num_batched_tokens", 64)
        media = media_of(size, max_step_tokens=step, splits_prompts=splits_prompts)
        bench = make_bench(media=media, enable_chunked_prefill=splits_prompts, block_size=4, **fields)
        return bench, EncoderModel(bench.scheduler)

    return make


def add(bench, size, *media, first=1000, **fields):
    return bench.add(prompt_of(first, size, media), media=media, **fields)


def test_a_chunk_ends_before_an_item_that_is_not_encoded(make):
    bench, encoder = make()
    request = add(bench, 20, image("a", 6, 8))

    assert bench.step() == {request.key: 6}
    assert encoder.take() == ["a"]
    assert bench.step() == {}
    encoder.encode()
    assert bench.step() == {request.key: 14}


def test_a_prompt_that_begins_with_an_item_waits_in_the_queue(make):
    bench, encoder = make()
    request = add(bench, 20, image("a", 0, 8))
    other = bench.add(5)

    assert bench.step() == {other.key: 5}
    assert (request.status, encoder.take()) == (RequestStatus.WAITING, ["a"])
    encoder.encode()
    assert bench.step() == {request.key: 20, other.key: 1}


def test_items_that_one_step_can_reach_are_asked_at_once_in_their_order(make):
    bench, encoder = make(max_num_batched_tokens=16)
    add(bench, 40, image("a", 2, 2), image("b", 6, 2), image("c", 15, 1), image("d", 16, 2))

    bench.step()

    assert encoder.take() == ["a", "b", "c"]


def test_a_chunk_may_begin_and_end_inside_an_item(make):
    bench, encoder = make(max_num_batched_tokens=8)
    request = add(bench, 20, image("a", 2, 16))
    bench.step()
    encoder.encode_all()

    steps = [bench.step() for _ in range(3)]

    assert steps == [{request.key: 8}, {request.key: 8}, {request.key: 2}]
    assert not next(iter(bench.scheduler.media.cache)).users


def test_tokens_before_the_second_item_do_not_wait_for_it(make):
    bench, encoder = make()
    request = add(bench, 30, image("a", 2, 4), image("b", 20, 4))
    bench.step()
    encoder.take()
    encoder.encode()

    assert bench.step() == {request.key: 18}


def test_an_item_of_two_requests_is_encoded_once_and_counted(make):
    bench, encoder = make()
    add(bench, 20, image("a", 6, 8), first=1000)
    add(bench, 20, image("a", 2, 8), image("b", 12, 2), first=2000)

    bench.step()

    assert encoder.take() == ["a", "b"]
    assert (bench.scheduler.media.stats.queries, bench.scheduler.media.stats.hits) == (3, 1)
    encoder.encode_all()
    bench.run()
    assert (bench.scheduler.media.stats.queries, bench.scheduler.media.stats.hits) == (3, 1)


def test_an_item_that_was_read_stays_for_later_requests(make):
    bench, encoder = make()
    add(bench, 20, image("a", 6, 8), first=1000, max_tokens=1)
    bench.step()
    encoder.encode_all()
    bench.run()

    request = add(bench, 20, image("a", 6, 8), first=2000)

    assert bench.step() == {request.key: 20}
    assert encoder.take() == []


def test_an_item_waits_for_room_and_the_worker_drops_another_first(make):
    bench, encoder = make(10)
    first = add(bench, 20, image("a", 6, 8), max_tokens=30)
    second = add(bench, 20, image("b", 6, 8), first=2000)
    bench.step()
    encoder.encode_all()
    assert encoder.order == ["a"]

    plan = bench.plan()
    assert (plan.num_scheduled_tokens(), plan.freed_encoder_hashes) == ({first.key: 14}, [])
    bench.deliver()
    plan = bench.plan()
    assert (plan.num_scheduled_tokens(), plan.freed_encoder_hashes) == ({first.key: 1}, ["a"])
    assert encoder.take() == []
    del encoder.cache["a"]
    bench.deliver()
    bench.step()
    encoder.encode_all()
    assert bench.step() == {first.key: 1, second.key: 14}


def test_entries_are_dropped_by_a_plan_of_their_own_if_nothing_runs(make):
    bench, encoder = make(10)
    add(bench, 20, image("a", 0, 8), max_tokens=1)
    bench.step()
    encoder.encode_all()
    bench.run()
    add(bench, 20, image("b", 0, 8), first=2000)

    plan = bench.plan()

    assert (plan.num_requests, plan.freed_encoder_hashes) == (0, ["a"])
    bench.deliver()
    assert (bench.plan(), encoder.take()) == (None, ["b"])


@pytest.mark.parametrize(("splits_prompts", "offset"), [(True, 0), (False, 0), (False, 2)])
@pytest.mark.parametrize("num_between", [0, 1])
def test_requests_behind_one_that_waits_for_room_get_none(make, splits_prompts, offset, num_between):
    """Smaller items of later requests would take the room again and again. One between them can begin without its item."""
    bench, encoder = make(10, splits_prompts=splits_prompts)
    holder = add(bench, 60, image("a", 2, 8), max_tokens=1)
    bench.step()
    encoder.encode_all()
    bench.scheduler.media.cache.use(next(iter(bench.scheduler.media.cache)), holder.key)
    add(bench, 20, image("b", offset, 8), first=2000)
    for _ in range(num_between):
        add(bench, 20, image("c", 2, 3), first=3000)
    add(bench, 20, image("d", 0, 2), first=4000)

    bench.plan()

    assert encoder.take() == []


def test_items_in_a_cached_prefix_are_not_encoded(make):
    bench, encoder = make()
    media = (image("a", 2, 8), image("b", 20, 4))
    add(bench, 30, *media, max_tokens=1)
    bench.step()
    encoder.encode_all()
    bench.run()
    bench.scheduler.forget_worker()  # the encoder cache is lost
    encoder.cache.clear()
    first = add(bench, 18, media[0], max_tokens=1)
    bench.step()
    encoder.encode_all()
    bench.run()

    request = add(bench, 30, *media)

    assert bench.step() == {request.key: 4}
    assert (request.num_cached_tokens, encoder.take()) == (16, ["b"])
    assert first.num_tokens == 19


def test_prompts_with_other_images_share_no_block(make):
    bench, encoder = make()
    add(bench, 20, image("a", 2, 8), max_tokens=1)
    bench.step()
    encoder.encode_all()
    bench.run()

    other = add(bench, 20, image("b", 2, 8))
    bench.step()

    assert other.num_cached_tokens == 0


def test_a_preempted_request_returns_its_references_and_asks_again_if_its_item_has_left(make):
    bench, encoder = make(10)
    request = add(bench, 30, image("a", 8, 8))
    bench.step()
    encoder.encode_all()
    (entry,) = bench.scheduler.media.cache
    bench.scheduler.media.most_tokens(request, 8, 22)
    assert entry.users == {request.key}

    bench.scheduler.states.preempt(request)

    assert entry.users == set()
    assert bench.step() == {request.key: 22}  # eight tokens are found in the prefix cache
    assert encoder.order == ["a"]


def test_a_request_that_starts_holds_the_items_that_one_step_can_reach(make):
    bench, encoder = make(max_num_batched_tokens=16, long_prefill_token_threshold=8)
    media = (image("a", 0, 2), image("b", 15, 1), image("c", 16, 2))
    for place, span in enumerate(media):
        add(bench, 5, image(span.identifier, 0, span.length), first=2000 + 100 * place, max_tokens=1)
    bench.step()
    encoder.encode_all()
    bench.run()

    request = add(bench, 30, *media)
    bench.add(3)
    assert bench.plan().num_scheduled_tokens()[request.key] == 8

    users = {entry.identifier: entry.users for entry in bench.scheduler.media.cache}
    assert users == {"a": set(), "b": {request.key}, "c": set()}


def test_a_request_that_has_started_keeps_its_item_beside_one_before_it_that_lacks_room(make):
    bench, encoder = make(10, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    first = add(bench, 40, image("a", 26, 8))
    second = add(bench, 20, image("b", 0, 9), first=2000)
    assert bench.step() == {first.key: 8}
    encoder.encode_all()
    assert bench.step() == {first.key: 8, second.key: 8}

    plan = bench.plan()

    assert plan.num_scheduled_tokens() == {first.key: 8, second.key: 8}
    assert (plan.freed_encoder_hashes, encoder.order) == ([], ["b"])


def test_a_failed_item_ends_the_requests_that_wait_for_it_alone(make):
    bench, encoder = make()
    waits = add(bench, 20, image("a", 6, 8))
    other = add(bench, 20, image("b", 6, 8), first=2000)
    bench.step()
    encoder.take()

    outputs = encoder.fail()

    assert [(output.request, output.error.message) for output in outputs] == [(waits, "It cannot be encoded.")]
    assert waits.status is RequestStatus.FINISHED_ERROR
    encoder.encode()
    bench.run()
    assert other.status is RequestStatus.FINISHED_LENGTH_CAPPED


def test_after_the_loss_of_a_worker_all_is_asked_again(make):
    bench, encoder = make()
    requests = [add(bench, 20, image(name, 6, 8), first=place) for name, place in (("a", 1000), ("b", 2000))]
    bench.step()
    encoder.take()
    encoder.encode()

    bench.scheduler.forget_worker()
    bench.in_flight.clear()
    lost = EncoderModel(bench.scheduler)
    bench.step()

    assert lost.take() == ["a", "b"]
    lost.encode_all()
    bench.run()
    assert {request.status for request in requests} == {RequestStatus.FINISHED_LENGTH_CAPPED}


def test_requests_whose_items_are_being_encoded_are_under_way(make):
    bench, encoder = make()
    request = add(bench, 20, image("a", 0, 8))
    bench.plan()
    states = bench.scheduler.states

    assert (states.in_flight, bench.scheduler.media.num_encoding) == ([request], 1)
    encoder.encode_all()
    assert (states.in_flight, bench.scheduler.media.num_encoding) == ([], 0)


def test_an_unsplit_prompt_waits_for_all_its_items(make):
    bench, encoder = make(splits_prompts=False)
    request = add(bench, 30, image("a", 2, 4), image("b", 20, 4))
    assert bench.step() == {}
    assert encoder.take() == ["a", "b"]
    encoder.encode()
    assert bench.step() == {}
    encoder.encode()

    assert bench.step() == {request.key: 30}


def test_requests_are_not_preempted_for_an_urgent_one_that_waits_for_its_item(make):
    bench, encoder = make(policy="priority", max_num_seqs=1)
    bench.add(5, max_tokens=30)
    bench.step()
    urgent = add(bench, 20, image("a", 0, 8), priority=1)

    bench.step()
    assert (bench.scheduler.states.num_preemptions, encoder.take()) == (0, ["a"])
    encoder.encode()
    assert bench.step() == {urgent.key: 20}


def test_the_room_of_a_request_that_is_preempted_in_a_plan_is_used_at_once(make):
    """Nothing would make another plan: no step and no encoding is under way."""
    bench, encoder = make(6, policy="priority", num_blocks=9)
    add(bench, 20, image("d", 4, 6))
    bench.step()
    encoder.take()
    first = add(bench, 22, image("a", 16, 1), first=2000, priority=1)
    bench.step()
    encoder.encode()

    plan = bench.plan()

    assert (first.num_computed_tokens, bench.scheduler.states.num_preemptions) == (16, 1)
    assert (plan.num_requests, plan.freed_encoder_hashes) == (0, ["d"])


def test_aborted_requests_leave_nothing_behind(make):
    bench, encoder = make()
    request = add(bench, 20, image("a", 6, 8))
    bench.step()
    media = bench.scheduler.media

    bench.scheduler.finish_requests([request.key], RequestStatus.FINISHED_ABORTED)

    assert (media.num_bytes, media.num_encoding) == (0, 1)
    encoder.encode_all()  # it stays for later requests
    assert media.usage == 0.08


def test_an_item_twice_in_a_prompt_holds_no_room_for_its_second_place(make):
    bench, encoder = make(8)
    request = add(bench, 30, image("a", 0, 4), image("b", 4, 5), image("a", 10, 4), max_tokens=1)

    for _ in range(20):
        plan = bench.plan()
        if plan is not None:
            encoder.note_plan(plan)
            encoder.run(plan)
            bench.deliver()
        encoder.encode_all()

    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED
    assert encoder.order == ["a", "b", "a"]


def test_an_item_twice_in_a_row_is_held_until_its_second_place_is_computed(make):
    bench, encoder = make(max_num_batched_tokens=8)
    request = add(bench, 20, image("a", 0, 4), image("a", 9, 4))
    bench.step()
    encoder.encode_all()
    (entry,) = bench.scheduler.media.cache

    users = []
    for _ in range(2):
        bench.step()
        users.append(set(entry.users))

    assert users == [{request.key}, set()]


class AllBlocks(RemoteStore):
    """Offers every prompt whole."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return request.num_tokens - num_computed_tokens


def test_a_prompt_from_another_engine_core_needs_no_encoding(make):
    bench, encoder = make(connector=AllBlocks(1, 4))
    request = add(bench, 17, image("a", 2, 8))
    bench.step()
    bench.scheduler.note_transfers(TransferEvents(received=[request.key]))

    assert bench.step() == {request.key: 1}
    assert encoder.take() == []
