"""The places of LoRA adapters on the worker: loads, evictions, pins, and the loss of a worker."""

import pytest

from tests.engine_core_svc.scheduler.fake_lora_engine import PARKED, FakeLoraEngine, ref
from tetrad.services.errors import FailedPrecondition, Overloaded

# --- places on the worker --------------------------------------------------------------------------------------------------


def test_the_least_recently_used_adapter_makes_room():
    engine = FakeLoraEngine(max_cpu_loras=2)
    engine.load(1, 2)
    for number in (2, 1):
        engine.end(engine.request(number))
    engine.request(3)

    assert (engine.evicted, engine.wanted[-1]) == (["a2"], "a3")
    assert engine.names("is_resident") == ["a1"]


def test_an_active_adapter_makes_no_room_and_the_next_one_waits():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=1)
    engine.load(1)
    running = engine.request(1)
    engine.request(2)

    assert (engine.evicted, engine.wanted) == ([], ["a1"])
    engine.end(running)
    assert (engine.evicted, engine.wanted) == (["a1"], ["a1", "a2"])


def test_an_adapter_that_a_plan_in_flight_names_makes_room_when_that_is_back():
    engine = FakeLoraEngine(max_cpu_loras=1)
    engine.load(1)
    request = engine.request(1)
    request.last_step_id, engine.returned = 5, 4
    engine.end(request)
    engine.request(2)

    assert engine.evicted == []
    engine.returned = 5
    engine.adapters.note_step()
    assert (engine.evicted, engine.wanted) == (["a1"], ["a1", "a2"])


def test_the_last_step_of_an_adapter_is_that_of_its_last_request():
    engine = FakeLoraEngine()
    engine.load(1)
    first, second = engine.request(1), engine.request(1)
    first.last_step_id, second.last_step_id = 8, 3
    engine.end(first)
    engine.end(second)

    assert first.adapter.last_step_id == 8


def test_the_next_in_line_is_not_overtaken_while_it_waits_for_a_place():
    """Plans in flight name a1 and a2, so a3 has no place; a2 waits behind it and could run."""
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=2)
    engine.load(1, 2)
    engine.returned = 6
    for number in (2, 1):
        request = engine.request(number)
        request.last_step_id = 7
        if number == 1:
            engine.request(3)
            later = engine.request(2)
        engine.end(request)

    assert (later in engine.released, engine.evicted) == (False, [])
    engine.returned = 7
    engine.adapters.note_step()
    assert (engine.evicted, engine.wanted[-1], engine.released[-1]) == (["a1"], "a3", later)


def test_an_adapter_whose_request_waits_longer_is_not_evicted():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=2)
    engine.load(1, 2)
    engine.request(1)
    engine.request(2)
    engine.request(3)

    assert (engine.evicted, engine.wanted) == ([], ["a1", "a2"])


def test_an_adapter_whose_request_waits_less_is_evicted_behind_idle_ones():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=3, policy="priority")
    engine.load(1, 2, 3)
    engine.request(1)
    engine.request(2)
    engine.request(4, priority=1)

    assert engine.evicted == ["a3"]
    engine.request(5, priority=1)
    assert engine.evicted == ["a3", "a2"]


def test_a_pinned_adapter_is_never_evicted():
    engine = FakeLoraEngine(max_cpu_loras=2)
    engine.load(1, 2)
    assert engine.adapters.pin(1).is_pinned
    engine.request(3)

    assert engine.evicted == ["a2"]


def test_one_place_stays_free_of_pins():
    engine = FakeLoraEngine(max_cpu_loras=2)
    engine.load(1, 2)
    engine.adapters.pin(1)
    engine.adapters.pin(1)

    with pytest.raises(FailedPrecondition, match="1 adapters are pinned; of max_cpu_loras 2 one place must stay free"):
        engine.adapters.pin(2)


def test_an_operator_loads_an_adapter_once():
    engine = FakeLoraEngine()
    adapter = engine.adapters.resolve(ref(1))
    for _ in range(2):
        engine.adapters.want(adapter)
    engine.adapters.loaded(adapter, b"1")
    engine.adapters.want(adapter)

    assert engine.wanted == ["a1"]


def test_an_operator_hears_that_all_places_are_in_use():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=1)
    engine.load(1)
    engine.request(1)

    with pytest.raises(Overloaded, match=r"All 1 places for adapters \(max_cpu_loras\) are in use") as refused:
        engine.adapters.want(engine.adapters.resolve(ref(2)))
    assert refused.value.retry_after_s == 1.0


def test_an_operator_evicts_nothing_that_requests_wait_for():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=2)
    engine.load(1, 2)
    engine.request(1)
    engine.request(2)

    with pytest.raises(Overloaded):
        engine.adapters.want(engine.adapters.resolve(ref(3)))


def test_an_adapter_that_cannot_be_loaded_ends_what_waits_for_it():
    engine = FakeLoraEngine()
    requests = [engine.request(1) for _ in range(2)]
    adapter = requests[0].adapter

    assert engine.adapters.waiting_for(adapter) == requests
    for request in requests:
        engine.end(request, PARKED)
    assert engine.wanted == ["a1"]
    engine.adapters.failed(adapter)
    assert not (adapter.is_loading or adapter.is_resident or adapter.was_resident)
    engine.adapters.registry.discard(adapter)
    assert list(engine.adapters.registry) == []
    assert engine.adapters.waiting_for(adapter) == []


# --- a lost worker -------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_while_there_is_no_worker():
    engine = FakeLoraEngine(is_up=False)
    engine.request(1)
    assert engine.wanted == []

    engine.adapters.worker_ready()
    assert engine.wanted == ["a1"]


def test_the_next_worker_gets_what_requests_wait_for_and_then_what_the_last_one_had():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=3)
    engine.load(1, 2, 3)
    for number in (3, 1, 2):
        engine.end(engine.request(number))
    running = engine.request(1)
    engine.adapters.forget_worker()
    engine.adapters.retreat(running)
    assert (engine.names("is_resident"), engine.names("is_active"), running.adapter.num_admitted) == ([], [], 0)
    assert (engine.adapters.waiting_names, running.adapter.last_step_id) == (["a1"], -1)
    engine.wanted.clear()

    engine.adapters.worker_ready()
    assert engine.wanted == ["a1", "a2", "a3"]
    engine.adapters.worker_ready()
    assert engine.wanted == ["a1", "a2", "a3"]


def test_the_next_worker_gets_no_more_than_it_has_places_for():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=2)
    engine.load(1, 2)
    engine.adapters.forget_worker()
    engine.request(3)
    engine.wanted.clear()
    engine.adapters.worker_ready()

    assert engine.wanted == ["a3", "a2"]


def test_the_next_worker_gets_pinned_adapters_first():
    engine = FakeLoraEngine(max_loras=1, max_cpu_loras=2)
    engine.load(1, 2)
    engine.adapters.pin(1)
    engine.adapters.forget_worker()
    engine.request(2)
    engine.request(3)
    engine.wanted.clear()

    engine.adapters.worker_ready()

    assert engine.wanted == ["a1", "a2"]


def test_an_adapter_that_was_being_loaded_counts_as_one_that_was_there():
    engine = FakeLoraEngine()
    engine.adapters.want(engine.adapters.resolve(ref(1)))
    engine.adapters.forget_worker()
    engine.adapters.worker_ready()

    assert engine.wanted == ["a1", "a1"]


@pytest.mark.parametrize("is_replaced", [True, False])
def test_the_next_worker_does_not_get_a_version_that_new_requests_do_not_use(is_replaced):
    """A plan in flight named it when its last request had ended."""
    engine = FakeLoraEngine()
    engine.load(1)
    request = engine.request(1)
    request.last_step_id = engine.returned + 1
    engine.end(request)
    if is_replaced:
        engine.adapters.registry.replace(engine.adapters.registry.add(ref(1)))
    else:
        engine.adapters.registry.remove(1)
    assert request.adapter.key in engine.adapters.registry.versions
    engine.adapters.forget_worker()
    engine.wanted.clear()

    engine.adapters.worker_ready()

    assert engine.wanted == []
    assert request.adapter.key not in engine.adapters.registry.versions
    assert engine.evicted == []


def test_requests_keep_their_order_when_they_retreat():
    engine = FakeLoraEngine()
    engine.load(1)
    requests = [engine.request(1) for _ in range(3)]
    engine.adapters.forget_worker()
    for request in reversed(requests):
        engine.adapters.retreat(request)
    engine.released.clear()
    engine.adapters.worker_ready()
    engine.adapters.loaded(requests[0].adapter, b"1")

    assert engine.released == requests


def test_requests_that_began_with_other_files_cannot_go_on():
    engine = FakeLoraEngine()
    engine.load(1)
    began, waited = engine.request(1), engine.request(1)
    began.token_ids.append(7)
    engine.adapters.forget_worker()
    for request in (began, waited):
        request.block_hashes.append(b"of the old files")
        engine.adapters.retreat(request)
    engine.released.clear()
    engine.adapters.worker_ready()

    assert engine.adapters.loaded(began.adapter, b"2") == [began]
    assert engine.released == []
    assert (began.block_hashes, waited.block_hashes) == ([], [])
    engine.adapters.refill()
    assert engine.released == [began, waited]


def test_requests_that_began_with_the_same_files_go_on():
    engine = FakeLoraEngine()
    engine.load(1)
    request = engine.request(1)
    request.token_ids.append(7)
    engine.adapters.forget_worker()
    request.block_hashes.append(b"of the files")
    engine.adapters.retreat(request)
    engine.adapters.worker_ready()

    assert engine.adapters.loaded(request.adapter, b"1") == []
    assert request.block_hashes == [b"of the files"]
