"""Requests whose KV blocks come from elsewhere, and requests whose blocks somebody else reads."""

import math

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from tests.engine_core_svc.kv_cache.fake_remote import RemoteStore
from tests.engine_core_svc.scheduler.test_random_walk import BLOCK_SIZE, SHARE, Walk
from tetrad.engine_core_svc.core.plan import TransferEvents
from tetrad.engine_core_svc.core.request import RequestStatus
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK

PROMPT = list(range(100, 117))
"""17 tokens: four whole blocks, and a token to compute."""


class AllBlocks(RemoteStore):
    """Offers every prompt whole."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return request.num_tokens - num_computed_tokens


@pytest.fixture
def bench(make_bench):
    return make_bench(num_blocks=12, block_size=4, connector=AllBlocks(1, 4))


def test_a_request_waits_for_its_blocks_and_computes_what_they_lack(bench):
    request = bench.add(PROMPT, max_tokens=1)

    beginning = bench.plan()
    waiting = (request.status, bench.plan())
    bench.deliver()
    bench.scheduler.note_transfers(TransferEvents(received=[request.key]))
    plan = bench.plan()

    assert (beginning.num_requests, waiting) == (0, (RequestStatus.WAITING_FOR_REMOTE_KVS, None))
    assert plan.num_scheduled_tokens() == {request.key: 1}
    assert request.num_cached_tokens == 16


def test_blocks_that_have_come_are_reported_as_stored(bench):
    told = []
    bench.scheduler.kv_cache.connector.stored = lambda *what: told.append(what)
    request = bench.add(PROMPT, max_tokens=1)
    bench.step()

    bench.scheduler.note_transfers(TransferEvents(received=[request.key]))

    assert told == [(request, 0, 4)]


def test_blocks_that_have_come_are_cached_in_every_group(make_bench):
    bench = make_bench(num_blocks=30, block_size=4, connector=AllBlocks(1, 4), windows=(None, 6))
    first = bench.add(PROMPT, max_tokens=1)
    bench.step()
    bench.scheduler.note_transfers(TransferEvents(received=[first.key]))
    bench.run()
    bench.scheduler.kv_cache.connector.most_blocks = 0

    second = bench.add(PROMPT, max_tokens=1)
    bench.step()

    assert (first.num_cached_tokens, second.num_cached_tokens) == (16, 16)
    assert list(bench.scheduler.kv_cache.connector.under_way) == [first.key]


def test_a_request_whose_transfer_fails_computes_its_prompt_itself_and_asks_for_no_other(bench):
    request = bench.add(PROMPT, max_tokens=1)
    bench.step()

    bench.scheduler.note_transfers(TransferEvents(received=[request.key], failed=[request.key]))

    assert bench.plan().num_scheduled_tokens() == {request.key: 17}
    assert bench.scheduler.kv_cache.connector.under_way.keys() == {request.key}


def test_others_run_while_a_request_waits(make_bench):
    bench = make_bench(num_blocks=20, block_size=4, connector=AllBlocks(1, 4))
    slow, other = bench.add(PROMPT, max_tokens=1), bench.add([1, 2, 3], max_tokens=1)

    plan = bench.plan()

    assert plan.num_scheduled_tokens() == {other.key: 3}
    assert slow.status is RequestStatus.WAITING_FOR_REMOTE_KVS


def test_the_blocks_of_a_request_that_ends_while_it_waits_stay_until_the_transfer_is_over(bench):
    request = bench.add(PROMPT, max_tokens=1)
    bench.step()

    bench.scheduler.finish_requests([request.key], RequestStatus.FINISHED_ABORTED)
    num_free_before = bench.num_free
    bench.scheduler.note_transfers(TransferEvents(received=[request.key]))

    assert (num_free_before, bench.num_free) == (7, 11)
    assert bench.scheduler.kv_cache.blocks_missing(bench.add(PROMPT)) <= 0


def test_a_transfer_is_given_up_once_when_all_that_waited_have_ended(bench):
    given_up = []
    bench.scheduler.kv_cache.connector.give_up = given_up.append
    request = bench.add(PROMPT, max_tokens=1)
    bench.step()
    bench.plan()
    before = list(given_up)

    bench.scheduler.finish_requests([request.key], RequestStatus.FINISHED_ABORTED)
    for _ in range(2):
        bench.plan()

    assert (before, [load.request.key for load in given_up]) == ([], [request.key])
    bench.scheduler.note_transfers(TransferEvents(received=[request.key], failed=[request.key]))
    assert bench.num_free == 11


def test_a_request_that_does_not_read_the_prefix_cache_fetches_nothing(bench):
    request = bench.add(PROMPT, max_tokens=1, skip_reading_prefix_cache=True)

    assert bench.plan().num_scheduled_tokens() == {request.key: 17}


def test_a_request_that_does_not_fit_waits_in_the_queue(make_bench):
    bench = make_bench(num_blocks=6, block_size=4, connector=AllBlocks(1, 4))
    first = bench.add([1, 2, 3], max_tokens=4)
    bench.plan()
    second = bench.add(PROMPT, max_tokens=1)

    plan = bench.plan()

    assert (plan.num_scheduled_tokens(), second.status) == ({first.key: 1}, RequestStatus.WAITING)


@pytest.mark.parametrize(("num_reserved", "is_loaded"), [(6, True), (7, False)])
def test_blocks_that_are_reserved_for_others_are_not_used_for_a_load(bench, num_reserved, is_loaded):
    """Of 11 free blocks the request needs 5."""
    kv_cache, request = bench.scheduler.kv_cache, bench.add(PROMPT, max_tokens=1)

    load = kv_cache.begin_load(request, kv_cache.find_prefix(request), num_reserved)

    assert (load is not None, bench.num_free) == (is_loaded, 7 if is_loaded else 11)


def test_blocks_that_are_kept_are_freed_when_they_have_been_read(make_bench):
    bench = make_bench(num_blocks=12, block_size=4, connector=RemoteStore(1, 4, most_blocks=0, keeps=1.0))
    request = bench.add(PROMPT, max_tokens=1)
    bench.run()
    num_free_before = bench.num_free

    bench.scheduler.note_transfers(TransferEvents(sent=[request.key, 77]))

    assert (num_free_before, bench.num_free) == (6, 11)


def test_the_prefix_cache_is_not_reset_while_another_engine_core_reads_blocks(make_bench):
    """The connector would forget them, and they would never be freed."""
    bench = make_bench(num_blocks=12, block_size=4, connector=RemoteStore(1, 4, most_blocks=0, keeps=1.0))
    request = bench.add(PROMPT, max_tokens=1)
    bench.run()

    assert not bench.scheduler.reset_prefix_cache()
    bench.scheduler.note_transfers(TransferEvents(sent=[request.key]))

    assert bench.scheduler.reset_prefix_cache()
    assert bench.num_free == 11


def test_a_reset_that_preempts_leaves_the_blocks_that_another_engine_core_reads_to_it(make_bench):
    """So /pause, which asks for it, forgets all prefixes also while blocks are kept."""
    bench = make_bench(num_blocks=12, block_size=4, connector=RemoteStore(1, 4, most_blocks=0, keeps=1.0))
    request = bench.add(PROMPT, max_tokens=1)
    bench.run()

    assert bench.scheduler.reset_prefix_cache(preempt_running=True)
    num_free = bench.num_free
    bench.scheduler.note_transfers(TransferEvents(sent=[request.key]))

    assert (num_free, bench.num_free) == (6, 11)
    assert bench.scheduler.kv_cache.pool.find(request.block_hashes[0]) is None


def test_blocks_that_come_after_a_reset_are_not_used(bench):
    """They were computed before it, for example with other weights."""
    request = bench.add(PROMPT, max_tokens=1)
    bench.step()

    assert bench.scheduler.reset_prefix_cache(preempt_running=True)
    bench.scheduler.note_transfers(TransferEvents(received=[request.key]))

    assert bench.plan().num_scheduled_tokens() == {request.key: 17}
    assert bench.scheduler.kv_cache.connector.under_way.keys() == {request.key}


def test_transfers_of_a_lost_worker_are_forgotten(bench):
    request = bench.add(PROMPT, max_tokens=1)
    bench.step()

    bench.scheduler.forget_worker()
    status = request.status
    bench.scheduler.note_transfers(TransferEvents(received=[request.key]))

    assert status is RequestStatus.WAITING
    assert (bench.num_free, request.num_computed_tokens) == (11, 0)


class RemoteWalk(Walk):
    """The walk of test_random_walk.py beside a machine that offers blocks of each prompt and reads some requests' own."""

    def _plan(self):
        """Let transfers write nonsense from the plan that begins them on: nobody may read their blocks yet."""
        known = set(self.store.under_way)
        plan = super()._plan()
        for key in self.store.under_way.keys() - known:
            for table in self.store.under_way[key].tables:
                self.memory.device.update({block: {} for block in table})
        return plan

    def _check_order(self, plan):
        """Requests that wait for blocks are overtaken."""

    @property
    def store(self):
        connector = self.bench.scheduler.kv_cache.connector
        return getattr(connector, "_connectors", [connector])[-1]  # beside host memory, if there is any

    @rule(data=st.data(), fails=st.integers(0, 2))
    @precondition(lambda self: self.store.under_way)
    def end_load(self, data, fails):
        self._end_load(data.draw(st.sampled_from(sorted(self.store.under_way))), has_failed=fails == 0)

    @rule(data=st.data())
    @precondition(lambda self: self.store.kept)
    def read_kept(self, data):
        self._read_kept(data.draw(st.sampled_from(sorted(self.store.kept))))

    def _end_load(self, key, *, has_failed):
        load = self.store.under_way.pop(key)
        if not has_failed:
            tokens = load.request.token_ids
            for group, table in enumerate(load.tables):
                for index, block in enumerate(table, start=load.first):
                    positions = range(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE)
                    self.memory.device[block] = {p % BLOCK_SIZE: (group, *tokens[: p + 1]) for p in positions}
        events = TransferEvents(received=[key], failed=[key] if has_failed else [])
        self.bench.scheduler.note_transfers(events)

    def _read_kept(self, key):
        tokens, blocks = self.store.kept.pop(key)
        if len(self.windows) == 1 and self.windows[0] is None:
            for position in range(len(tokens)):
                slot = self.memory.device[blocks[position // BLOCK_SIZE]]
                assert slot[position % BLOCK_SIZE] == (0, *tokens[: position + 1]), "a kept block was written over"
        assert NULL_BLOCK not in blocks
        self.bench.scheduler.note_transfers(TransferEvents(sent=[key]))

    def _end_transfer(self):
        """End what is under way when nothing else goes on; return whether there was anything."""
        if self.store.under_way:
            self._end_load(min(self.store.under_way), has_failed=False)
        elif self.store.kept:
            self._read_kept(min(self.store.kept))
        else:
            return False
        return True


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@pytest.mark.parametrize(("windows", "num_blocks", "num_walks"), [((None,), 14, 100), ((None, 6), 28, 50)], ids=str)
def test_random_walks_with_remote_blocks_lose_no_block_and_no_request(
    make_bench, compiled, vocabulary, windows, num_blocks, num_walks
):
    """Fetched, failed and kept blocks change no token, and none is lost."""

    def make(**given):
        """Requests that run alone, to compare with, have no such machine beside them."""
        return make_bench(connector=RemoteStore(7, BLOCK_SIZE, keeps=0.5) if given else None, **given)

    given = {"make_bench": staticmethod(make), "letters": compiled("regex", "[a-e]{4}"), "vocabulary": vocabulary}
    given |= {"windows": windows, "num_blocks": num_blocks}
    run_state_machine_as_test(
        type("GivenWalk", (RemoteWalk,), given),
        settings=settings(
            max_examples=math.ceil(num_walks * SHARE), stateful_step_count=60,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
