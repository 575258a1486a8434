"""The scheduler's LoRA adapters: turns of requests, and random walks."""

from random import Random

import pytest

from tests.engine_core_svc.scheduler.fake_lora_engine import PARKED, FakeLoraEngine, ref
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler import adapters as module
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters, NoAdapters
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.services.errors import Unsupported

WAITING = RequestStatus.WAITING


def test_an_engine_without_adapters_refuses_them_by_name():
    with pytest.raises(Unsupported, match="'a1' cannot be used: start with enable_lora") as refused:
        NoAdapters().resolve(ref(1))

    assert refused.value.field == "lora_request"
    assert NoAdapters().admits(Request(1, "r", [1], 1, 2))
    assert (NoAdapters().running_names, NoAdapters().waiting_names) == ([], [])


def test_the_adapters_that_requests_wait_for_are_named_up_to_a_limit():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=1000)
    engine.load(1)
    engine.request(1)
    for number in range(2, 302):
        engine.request(number)

    assert engine.adapters.waiting_names == [f"a{number}" for number in range(2, 130)]


# --- turns ---------------------------------------------------------------------------------------------------------------


def test_the_first_request_of_an_adapter_has_it_loaded_and_then_runs():
    engine = FakeLoraEngine()
    request = engine.request(1)
    adapter = request.adapter

    assert (engine.wanted, engine.released, adapter.is_loading) == (["a1"], [], True)
    assert engine.adapters.waiting_names == ["a1"]
    assert engine.adapters.loaded(adapter, b"1") == []
    assert engine.released == [request]
    assert (adapter.is_resident, adapter.is_loading, adapter.is_active) == (True, False, True)
    assert (engine.adapters.running_names, engine.adapters.waiting_names) == (["a1"], [])


def test_requests_without_an_adapter_never_wait():
    engine = FakeLoraEngine()
    plain = engine.request(None)
    engine.end(plain)

    assert plain.status is WAITING
    assert engine.released == []


def test_requests_of_an_active_adapter_join_at_once():
    engine = FakeLoraEngine()
    engine.load(1)
    engine.request(1)
    second = engine.request(1)

    assert second.status is WAITING
    assert second.adapter.num_admitted == 2


def test_an_adapter_on_the_worker_that_is_not_active_becomes_so_for_its_request():
    engine = FakeLoraEngine()
    engine.load(1)
    request = engine.request(1)

    assert engine.released == [request]
    assert engine.wanted == ["a1"]


def test_another_adapter_waits_until_the_active_one_has_no_request():
    engine = FakeLoraEngine(max_loras=1)
    engine.load(1, 2)
    first, second, other = engine.request(1), engine.request(1), engine.request(2)

    engine.end(first)
    assert other not in engine.released
    engine.end(second)
    assert engine.released[-1] is other
    assert engine.names("is_active") == ["a2"]


def test_as_many_adapters_are_active_as_the_limit_says():
    engine = FakeLoraEngine(max_loras=2, max_cpu_loras=3)
    engine.load(1, 2, 3)
    requests = [engine.request(number) for number in (1, 2, 3)]

    assert engine.names("is_active") == ["a1", "a2"]
    engine.end(requests[1])
    assert engine.names("is_active") == ["a1", "a3"]


def test_the_place_goes_to_the_adapter_whose_request_has_waited_longest():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=3)
    engine.load(1, 2, 3)
    running = engine.request(1)
    third, second, more = engine.request(3), engine.request(2), engine.request(3)
    engine.end(running)

    assert engine.released[1:] == [third, more]
    for request in (third, more):
        engine.end(request)
    assert engine.released[3:] == [second]


def test_with_priorities_the_place_goes_to_the_most_urgent():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=3, policy="priority")
    engine.load(1, 2, 3)
    running = engine.request(1)
    engine.request(3)
    urgent = [engine.request(2, priority=1), engine.request(2), engine.request(2, priority=2)]
    engine.end(running)

    assert engine.released[1:] == [urgent[2], urgent[0], urgent[1]]


def test_64_requests_of_an_active_adapter_pass_one_that_waits(monkeypatch):
    monkeypatch.setattr(module, "_LET_IN_WHILE_OTHERS_WAIT", 3)
    engine = FakeLoraEngine(max_loras=1)
    engine.load(1, 2)
    mine = [engine.request(1)]
    engine.request(2)
    mine += [engine.request(1) for _ in range(3)]

    assert [request.status for request in mine] == [PARKED, WAITING, WAITING, PARKED]
    assert engine.adapters.waiting_names == ["a2", "a1"]
    for request in mine[:3]:
        engine.end(request)
    assert engine.names("is_active") == ["a2"]
    # It is counted anew when its turn comes again.
    assert mine[3] not in engine.released


def test_the_count_of_those_that_passed_begins_anew_with_each_turn(monkeypatch):
    monkeypatch.setattr(module, "_LET_IN_WHILE_OTHERS_WAIT", 2)
    engine = FakeLoraEngine(max_loras=1)
    engine.load(1, 2)
    for _ in range(3):
        engine.end(engine.request(1))
    engine.request(1)
    engine.request(2)

    assert engine.request(1).status is WAITING
    assert engine.request(1).status is PARKED


def test_a_request_that_ends_while_it_waits_frees_its_place_in_line():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=3)
    engine.load(1, 2, 3)
    running, second, third = engine.request(1), engine.request(2), engine.request(3)
    engine.end(second, PARKED)
    assert engine.adapters.waiting_names == ["a3"]
    engine.end(running)

    assert engine.released == [running, third]
    assert second.adapter.num_requests == 0


def test_one_of_several_that_wait_ends_alone():
    engine = FakeLoraEngine(max_loras=1)
    engine.load(1, 2)
    running, first, second = engine.request(1), engine.request(2), engine.request(2)
    engine.end(first, PARKED)
    engine.end(running)

    assert engine.released == [running, second]


def test_a_request_that_ends_before_its_grammar_was_ready_held_no_place():
    engine = FakeLoraEngine()
    engine.load(1)
    request = engine.request(1)
    other = Request(9, "r9", [1], 1, 9, adapter=request.adapter, status=RequestStatus.WAITING_FOR_GRAMMAR)
    engine.adapters.begin(other)
    engine.end(other, RequestStatus.WAITING_FOR_GRAMMAR)

    assert (request.adapter.num_admitted, request.adapter.num_requests) == (1, 1)


# --- random walks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_random_walks_end_every_request_and_keep_the_limits(seed):
    """Through a scheduler, with aborts, lost workers, and loads that take a while."""
    random = Random(seed)
    limits = AdapterLimits(random.randint(1, 2), random.randint(2, 3))
    adapters = Adapters(limits, ORDERS_OF_ARRIVAL["fcfs"])
    scheduler = Scheduler(SchedulerLimits(max_num_seqs=4), KVCacheManager(60, 4), adapters=adapters)
    loading, held, requests = [], set(), []

    def evict(adapter):
        assert not adapter.num_admitted
        held.remove(adapter)

    adapters.on_wanted, adapters.on_evicted = loading.append, evict
    adapters.worker_ready()

    def finish_load():
        adapter = loading.pop(random.randrange(len(loading)))
        held.add(adapter)
        adapters.loaded(adapter, b"1")
        adapters.refill()

    def step():
        plan = scheduler.schedule()
        if plan is None:
            return
        keys = plan.num_scheduled_tokens()
        names = {scheduler.requests[key].adapter for key in keys} - {None}
        assert len(names) <= limits.max_loras
        assert names <= held
        scheduler.update(ModelRunnerOutput(plan.step_id, list(plan.sampling_keys), [(5,)] * len(plan.sampling_keys)))

    def check():
        assert len(held) + len(loading) <= limits.max_cpu_loras
        for adapter in adapters.registry:
            mine = [each for each in scheduler.requests.values() if each.adapter is adapter]
            assert adapter.num_requests == len(mine)
            assert adapter.num_admitted == sum(each.status is not PARKED for each in mine)
            assert adapter.is_resident == (adapter in held)

    for key in range(1, 400):
        what = random.random()
        if what < 0.3:
            adapter = random.choice([None, *(adapters.resolve(ref(number)) for number in range(1, 5))])
            prompt = [random.randrange(99) for _ in range(random.randint(1, 9))]
            request = Request(key, f"r{key}", prompt, len(prompt), len(prompt) + 3, sequence_number=key, adapter=adapter)
            requests.append(request)
            scheduler.add_request(request)
        elif what < 0.35 and scheduler.requests:
            scheduler.finish_requests([random.choice(list(scheduler.requests))], RequestStatus.FINISHED_ABORTED)
        elif what < 0.37:
            loading.clear()
            held.clear()
            scheduler.forget_worker()
            adapters.worker_ready()
        elif what < 0.6 and loading:
            finish_load()
        else:
            step()
        check()
    for _ in range(2000):
        if loading:
            finish_load()
        step()
    assert all(request.is_finished for request in requests)
    assert all(not adapter.num_requests for adapter in adapters.registry)
