"""A request that fails alone leaves blocks unwritten: no request may use these, or find them later."""

from random import Random

import pytest

from tests.engine_core_svc.kv_cache.worker_memory import STATE, LostBlocks, WorkerMemory, group_of
from tests.engine_core_svc.scheduler.fake_drafts import GuessedDrafts
from tetrad.engine_core_svc.core.plan import FinishReason
from tetrad.engine_core_svc.core.request import RequestStatus
from tetrad.engine_core_svc.scheduler.budget import NoStages
from tetrad.engine_core_svc.scheduler.stage_filling import StageFilling

BLOCK_SIZE = 4
COMMON = list(range(100, 112))  # three full blocks


@pytest.fixture
def bench(make_bench):
    return make_bench(block_size=BLOCK_SIZE, num_blocks=40, connector=LostBlocks())


def test_the_blocks_of_a_request_that_failed_are_not_found(bench):
    failing = bench.add([*COMMON, 1])
    bench.plan()
    [output] = bench.deliver(failed=[failing.key])

    later = bench.add([*COMMON, 2], max_tokens=1)

    assert bench.step() == {later.key: 13}
    assert (output.request, output.finish_reason) == (failing, FinishReason.ERROR)
    assert set(bench.scheduler.kv_cache.connector.lost) == set(failing.block_hashes)


def test_what_a_request_had_written_before_the_step_that_failed_is_found(make_bench):
    bench = make_bench(block_size=BLOCK_SIZE, max_num_batched_tokens=8)
    failing = bench.add([*COMMON, 1])
    bench.step()
    bench.plan()
    bench.deliver(failed=[failing.key])

    later = bench.add([*COMMON, 2], max_tokens=1)

    assert bench.step() == {later.key: 5}


def test_what_was_written_by_others_stays_found(bench):
    bench.add([*COMMON, 0], max_tokens=1)
    bench.run()
    failing = bench.add([*COMMON, 1])
    bench.plan()
    bench.deliver(failed=[failing.key])

    later = bench.add([*COMMON, 2], max_tokens=1)

    assert bench.step() == {later.key: 1}


@pytest.mark.parametrize("depth", [1, 2])
def test_who_shared_blocks_that_were_never_written_is_computed_again(bench, depth):
    """Its tokens of all steps in flight are dropped: none of them follows from its prompt."""
    failing, sharing = bench.add([*COMMON, 1], max_tokens=4), bench.add([*COMMON, 2], max_tokens=4)
    for _ in range(depth):
        bench.plan()

    [output] = bench.deliver({sharing.key: [666]}, failed=[failing.key])
    if depth == 2:
        assert bench.deliver({sharing.key: [666]}) == []
    again = bench.step()

    assert output.request is failing
    assert again == {sharing.key: 13}
    bench.run()
    assert sharing.token_ids[13:] == [1000 + sharing.key] * 4


def test_blocks_that_were_never_written_do_not_count_as_cached(bench):
    """The request's usage names the tokens that it finds when it is computed again."""
    bench.add(COMMON[:4], max_tokens=1)
    bench.run()
    failing, sharing = bench.add([*COMMON, 1]), bench.add([*COMMON, 2], max_tokens=1)
    bench.plan()
    before = sharing.num_cached_tokens

    bench.deliver(failed=[failing.key])
    bench.step()

    assert (before, sharing.num_cached_tokens) == (12, 4)


def test_a_failure_that_another_one_explains_is_tried_again(bench):
    failing, sharing = bench.add([*COMMON, 1], max_tokens=4), bench.add([*COMMON, 2], max_tokens=4)
    bench.plan()

    bench.deliver(failed=[failing.key, sharing.key])
    bench.run()

    assert sharing.num_output_tokens == 4
    assert sharing.status is RequestStatus.FINISHED_LENGTH_CAPPED


def test_who_only_ran_beside_it_is_not_computed_again(bench):
    failing, other = bench.add([*COMMON, 1]), bench.add(9)
    bench.plan()
    bench.deliver(failed=[failing.key])

    assert bench.step() == {other.key: 1}


def test_a_request_that_was_aborted_before_it_failed_leaves_nothing_either(bench):
    failing = bench.add([*COMMON, 1])
    bench.plan()
    bench.scheduler.finish_requests([failing.key], RequestStatus.FINISHED_ABORTED)
    bench.deliver(failed=[failing.key])

    later = bench.add([*COMMON, 2], max_tokens=1)

    assert bench.step() == {later.key: 13}


def test_blocks_that_are_forgotten_are_handed_out_before_cached_ones(bench):
    failing = bench.add([*COMMON, 1])
    bench.plan()
    blocks = list(failing.block_tables[0])
    bench.scheduler.states.preempt_all()
    bench.deliver(failed=[failing.key])

    assert set(bench.scheduler.kv_cache.pool.free_blocks()[:4]) == set(blocks)


def test_what_was_evicted_before_it_was_written_is_not_brought_back(make_bench):
    """The copy to the host was made: of a block whose first writer had failed."""
    bench = make_bench(num_blocks=8, block_size=BLOCK_SIZE, num_host_blocks=8)
    failing = bench.add([*COMMON, 1])
    bench.plan()
    bench.scheduler.states.preempt_all()
    bench.scheduler.finish_requests([failing.key], RequestStatus.FINISHED_ABORTED)
    bench.add(26, max_tokens=1)
    evicting = bench.plan()
    bench.deliver(failed=[failing.key])
    bench.deliver()

    later = bench.add([*COMMON, 2], max_tokens=1)

    assert len(evicting.swaps.out) == 3
    assert bench.step() == {later.key: 13}


def _next_token(_key, length):
    return 500 + length % 3


class Walk:
    """Requests of few prompts on few blocks; some are refused by a worker whose memory is watched.

    Who reads nonsense fails of it, or brings a token that nobody else does.
    """

    def __init__(self, make_bench, seed, windows, num_blocks):
        self.random = random = Random(seed)
        self.num_blocks, groups = num_blocks, [group_of(window) for window in windows]
        self.bench = make_bench(
            num_blocks=num_blocks, windows=windows, block_size=BLOCK_SIZE, num_host_blocks=random.choice([0, 3, 40]),
            max_num_seqs=4, max_num_batched_tokens=random.choice([16, 64]), policy=random.choice(["fcfs", "priority"]),
            drafts=GuessedDrafts(random, random.choice([0, 3]), _next_token, asks_worker=random.random() < 0.3),
        )  # fmt: skip
        self.bench.scheduler.stages = random.choice([NoStages(), StageFilling(2)])
        self.bench.next_token = _next_token
        self.depth, self.memory = random.randint(1, 3), WorkerMemory(BLOCK_SIZE, groups)
        self.requests, self.refused, self.misled, self.failed = [], set(), {}, {}

    def run(self):
        for _ in range(400):
            kind = self.random.random()
            if kind < 0.3:
                self.add()
            elif kind < 0.33 and self.bench.scheduler.requests:
                key = self.random.choice(list(self.bench.scheduler.requests))
                self.bench.scheduler.finish_requests([key], RequestStatus.FINISHED_ABORTED)
            else:
                self.random.choice([self.plan, self.deliver])()
        for _ in range(2000):
            self.plan()
            self.deliver()

    def add(self):
        start = self.random.choice([0, 100])
        prompt = range(start, start + self.random.randint(9, 30))
        priority, max_tokens = self.random.randint(0, 2), self.random.randint(1, 12)
        request = self.bench.add(prompt, max_tokens=max_tokens, priority=priority, max_model_len=48)
        self.requests.append(request)
        if self.random.random() < 0.4:
            self.refused.add(request.key)

    def plan(self):
        if len(self.bench.in_flight) == self.depth or (plan := self.bench.plan()) is None:
            return
        failed = {new.key for new in plan.new_requests} & self.refused
        misled = self.memory.run(plan, self.bench.in_flight[-1][1], failing=failed)
        broken = {key for key in sorted(misled) if self.random.random() < 0.3}
        self.memory.set_aside |= broken
        self.misled[plan.step_id], self.failed[plan.step_id] = misled, failed | broken

    def deliver(self):
        if self.bench.in_flight:
            plan, sampled = self.bench.in_flight[0]
            nonsense = {key: [666] for key in sampled if key in self.misled[plan.step_id]}
            self.bench.deliver(nonsense, failed=self.failed[plan.step_id])


@pytest.mark.parametrize(
    ("windows", "num_blocks", "num_walks"),
    [((None,), 14, 16), ((None, 6, 6), 38, 10), ((9,), 14, 8), ((1, None), 26, 9), ((None, STATE), 26, 14)],
    ids=str,
)
def test_random_walks_answer_from_nothing_that_was_not_written(make_bench, windows, num_blocks, num_walks):
    """Whatever is evicted, passed, swapped, preempted and aborted meanwhile, and however many plans are in flight."""
    walks = [Walk(make_bench, seed, windows, num_blocks) for seed in range(num_walks)]

    for walk in walks:
        walk.run()

    for walk in walks:
        assert not walk.bench.scheduler.has_requests
        assert walk.bench.num_free == walk.num_blocks - 1
        for request in walk.requests:
            assert 666 not in request.token_ids
            assert (request.status is RequestStatus.FINISHED_ERROR) <= (request.key in walk.refused)
    assert sum(bool(misled) for walk in walks for misled in walk.misled.values()) > 10


def test_who_shared_and_was_aborted_does_not_keep_others_from_being_computed_again(bench):
    failing, aborted, sharing = (bench.add([*COMMON, number], max_tokens=4) for number in (1, 2, 3))
    bench.plan()
    bench.scheduler.finish_requests([aborted.key], RequestStatus.FINISHED_ABORTED)

    bench.deliver(failed=[failing.key])

    assert bench.step() == {sharing.key: 13}
