"""Which requests run alone after crashes, which are cleared, and which fail; on a scheduler without a worker."""

import pytest

from tests.engine_core_svc.scheduler.fake_lora_engine import ref
from tetrad.engine_core_svc.core.request import RequestStatus
from tetrad.engine_core_svc.engine.crash_isolation import TOKENS_TO_FORGET, CrashIsolation
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL

TOKENS_TO_CLEAR = 3


@pytest.fixture
def bench(make_bench):
    return make_bench(max_num_seqs=8)


@pytest.fixture
def suspects(bench):
    return CrashIsolation(bench.scheduler, tokens_to_clear=TOKENS_TO_CLEAR)


def lose_worker(bench, suspects, *, crashed=True, elsewhere=False):
    """Replace a lost worker; return the keys of the requests that fail for it."""
    suspects.note_loss()
    bench.scheduler.forget_worker()
    bench.in_flight.clear()
    bench.worker_lengths.clear()
    to_fail = suspects.resolve_loss(crashed=crashed, elsewhere=elsewhere)
    bench.scheduler.finish_requests([request.key for request in to_fail], RequestStatus.FINISHED_ERROR)
    return [request.key for request in to_fail]


def plan(bench, suspects):
    """Choose and plan; return the keys of the planned requests."""
    suspects.choose(len(bench.in_flight))
    found = bench.plan()
    return set() if found is None else set(found.num_scheduled_tokens())


def crash_twice(bench, suspects, *, elsewhere=False):
    for _ in range(2):
        plan(bench, suspects)
        lose_worker(bench, suspects, elsewhere=elsewhere)


def test_one_crash_leaves_everyone_together(bench, suspects):
    first, second = bench.add(10), bench.add(10)
    plan(bench, suspects)

    assert lose_worker(bench, suspects) == []

    assert plan(bench, suspects) == {first.key, second.key}


def test_after_two_crashes_each_runs_alone_until_its_tokens_clear_it(bench, suspects):
    requests = [bench.add(10, max_tokens=50) for _ in range(3)]
    crash_twice(bench, suspects)

    alone = []
    for _ in range(3 * TOKENS_TO_CLEAR):
        alone.append(plan(bench, suspects))
        bench.deliver()

    assert alone == [{request.key} for request in requests for _ in range(TOKENS_TO_CLEAR)]
    assert plan(bench, suspects) == {request.key for request in requests}


def test_the_request_that_runs_alone_at_the_third_crash_fails_and_no_other(bench, suspects):
    poison, other = bench.add(10), bench.add(10)
    crash_twice(bench, suspects)
    assert plan(bench, suspects) == {poison.key}

    assert lose_worker(bench, suspects) == [poison.key]

    assert plan(bench, suspects) == {other.key}
    bench.deliver()
    bench.run()


def test_a_request_of_another_engine_may_crash_its_worker_three_times_and_none_of_this_engine_fails(bench, suspects):
    first, second = bench.add(10), bench.add(10)
    crash_twice(bench, suspects, elsewhere=True)
    assert plan(bench, suspects) == {first.key}

    assert lose_worker(bench, suspects, elsewhere=True) == []

    for _ in range(TOKENS_TO_CLEAR):
        assert plan(bench, suspects) == {first.key}
        bench.deliver()
    assert plan(bench, suspects) == {second.key}


def test_a_request_that_runs_alone_at_two_crashes_of_another_engines_worker_fails(bench, suspects):
    poison, other = bench.add(10), bench.add(10)
    crash_twice(bench, suspects, elsewhere=True)
    plan(bench, suspects)
    lose_worker(bench, suspects, elsewhere=True)
    plan(bench, suspects)

    assert lose_worker(bench, suspects, elsewhere=True) == [poison.key]

    assert plan(bench, suspects) == {other.key}


def test_a_request_that_was_not_in_flight_is_no_suspect(bench, suspects):
    poison = bench.add(10)
    crash_twice(bench, suspects)
    plan(bench, suspects)
    late = bench.add(10)

    assert lose_worker(bench, suspects) == [poison.key]
    assert plan(bench, suspects) == {late.key}
    assert lose_worker(bench, suspects) == []


def test_a_crash_does_not_count_for_a_request_not_planned_since_the_last_one(bench, suspects):
    first, second = bench.add(10), bench.add(10)
    plan(bench, suspects)

    for _ in range(3):
        assert lose_worker(bench, suspects) == []

    assert plan(bench, suspects) == {first.key, second.key}


def test_losses_that_are_no_crashes_do_not_count(bench, suspects):
    first, second = bench.add(10), bench.add(10)
    for _ in range(5):
        plan(bench, suspects)
        assert lose_worker(bench, suspects, crashed=False) == []

    assert plan(bench, suspects) == {first.key, second.key}


def test_a_lost_connection_does_not_end_the_isolation(bench, suspects):
    first, _ = bench.add(10), bench.add(10)
    crash_twice(bench, suspects)
    assert plan(bench, suspects) == {first.key}

    lose_worker(bench, suspects, crashed=False)

    assert plan(bench, suspects) == {first.key}


def test_progress_resets_the_count_of_crashes(bench, suspects):
    first, second = bench.add(10, max_tokens=200), bench.add(10, max_tokens=200)
    for _ in range(4):
        plan(bench, suspects)
        assert lose_worker(bench, suspects) == []
        for _ in range(TOKENS_TO_FORGET):
            assert plan(bench, suspects) == {first.key, second.key}
            bench.deliver()


def test_the_next_suspect_waits_for_the_plans_of_the_last_one(bench, suspects):
    first, second = bench.add(10, max_tokens=50), bench.add(10)
    crash_twice(bench, suspects)
    for _ in range(2):
        assert plan(bench, suspects) == {first.key}
    for _ in range(TOKENS_TO_CLEAR):
        bench.deliver()
        plan(bench, suspects)
    assert len(bench.in_flight) == 1  # of the first, sent before it was cleared

    assert plan(bench, suspects) == set()
    bench.deliver()
    assert plan(bench, suspects) == {second.key}


def test_a_suspect_that_is_aborted_keeps_nobody_waiting(bench, suspects):
    first, second = bench.add(10), bench.add(10)
    crash_twice(bench, suspects)
    assert plan(bench, suspects) == {first.key}

    bench.scheduler.finish_requests([first.key], RequestStatus.FINISHED_ABORTED)

    assert plan(bench, suspects) == set()
    bench.deliver()
    assert plan(bench, suspects) == {second.key}


def test_a_suspect_finds_room_that_those_cleared_before_it_have_taken(make_bench):
    bench = make_bench(num_blocks=4, block_size=4)
    suspects = CrashIsolation(bench.scheduler, tokens_to_clear=TOKENS_TO_CLEAR)
    small, large = bench.add(4, max_tokens=8), bench.add(4, max_tokens=8)
    crash_twice(bench, suspects)
    for request in (small, large):
        for _ in range(TOKENS_TO_CLEAR):
            assert plan(bench, suspects) == {request.key}
            bench.deliver()

    suspects.choose(0)
    bench.run()


class LoraBench:
    """A bench whose requests have adapters; its worker has loaded them by the next plan."""

    def __init__(self, make_bench, *, max_loras, max_cpu_loras):
        self.adapters = Adapters(AdapterLimits(max_loras, max_cpu_loras), ORDERS_OF_ARRIVAL["fcfs"])
        self.wanted = []
        self.adapters.on_wanted = self.wanted.append
        self.bench = make_bench(max_num_seqs=8, adapters=self.adapters)
        self.suspects = CrashIsolation(self.bench.scheduler, tokens_to_clear=TOKENS_TO_CLEAR)
        self.adapters.worker_ready()

    def add(self, number, max_tokens=50):
        return self.bench.add(10, max_tokens=max_tokens, adapter=self.adapters.resolve(ref(number)))

    def plan(self):
        self.suspects.choose(len(self.bench.in_flight))
        while self.wanted:
            self.adapters.loaded(self.wanted.pop(0), b"digest")
            self.suspects.choose(len(self.bench.in_flight))
        return plan(self.bench, self.suspects)

    def step(self):
        planned = self.plan()
        if planned:
            self.bench.deliver()
        return planned

    def lose_worker(self, *, crashed=True):
        self.plan()
        self.wanted.clear()
        lose_worker(self.bench, self.suspects, crashed=crashed)
        self.adapters.worker_ready()


@pytest.mark.parametrize("max_cpu_loras", [1, 2])
def test_a_suspect_gets_the_place_of_an_adapter_that_was_awaited_before(make_bench, max_cpu_loras):
    """The older request waited while the suspect joined others with its adapter; after the crash its adapter is the first."""
    lora = LoraBench(make_bench, max_loras=1, max_cpu_loras=max_cpu_loras)
    short, older, suspect = lora.add(1, max_tokens=3), lora.add(2), lora.add(1)
    lora.lose_worker()
    for _ in range(3):
        lora.step()
    assert short.is_finished
    lora.lose_worker()

    alone = [lora.step() for _ in range(TOKENS_TO_CLEAR)]
    lora.lose_worker(crashed=False)
    after_loss = [lora.step() for _ in range(3)]

    assert alone == [{suspect.key}] * TOKENS_TO_CLEAR
    assert after_loss == [{older.key}] * 3


def test_no_adapter_is_loaded_beside_a_suspect(make_bench):
    lora = LoraBench(make_bench, max_loras=1, max_cpu_loras=2)
    suspect = lora.bench.add(10, max_tokens=50)
    lora.lose_worker()
    lora.lose_worker()
    alone = [lora.step()]
    other = lora.add(1, max_tokens=5)
    wanted = list(lora.wanted)

    alone += [lora.step() for _ in range(TOKENS_TO_CLEAR - 1)]

    assert wanted == []
    assert alone == [{suspect.key}] * TOKENS_TO_CLEAR
    assert other.key in lora.step()


def test_a_crash_while_an_adapter_is_loaded_fails_no_suspect(make_bench):
    """The load may have caused it. The next crash of the suspect alone fails it."""
    lora = LoraBench(make_bench, max_loras=1, max_cpu_loras=2)
    suspect = lora.bench.add(10, max_tokens=50)
    lora.lose_worker()
    lora.lose_worker()
    lora.plan()
    lora.adapters.want(lora.adapters.resolve(ref(1)))
    [loading] = lora.wanted

    spared = lose_worker(lora.bench, lora.suspects)
    lora.wanted.clear()
    num_crashes = loading.num_crashes
    lora.adapters.worker_ready()
    lora.plan()

    assert (spared, num_crashes, loading.num_crashes) == ([], 1, 0)
    assert lose_worker(lora.bench, lora.suspects) == [suspect.key]


def test_a_suspect_keeps_its_place_on_the_next_worker(make_bench):
    lora = LoraBench(make_bench, max_loras=1, max_cpu_loras=1)
    lora.add(1, max_tokens=3)
    lora.add(2)
    suspect = lora.add(1)
    lora.lose_worker()
    for _ in range(3):
        lora.step()
    lora.lose_worker()
    lora.lose_worker(crashed=False)

    assert lora.step() == {suspect.key}


def test_a_suspect_gets_the_place_of_the_one_before_it(make_bench):
    lora = LoraBench(make_bench, max_loras=2, max_cpu_loras=2)
    short, first, _, second = lora.add(1, max_tokens=3), lora.add(2), lora.add(3), lora.add(1)
    lora.lose_worker()
    for _ in range(3):
        lora.step()
    assert short.is_finished
    lora.lose_worker()

    planned = [lora.step() for _ in range(2 * TOKENS_TO_CLEAR)]

    assert planned == [{first.key}] * TOKENS_TO_CLEAR + [{second.key}] * TOKENS_TO_CLEAR
