"""The scheduler's LoRA adapters: turns of requests, places on the worker, versions, and the loss of a worker.

The test plays the worker: it receives the orders `wanted` and `evicted`. Adapter n is `a<n>`.
"""

from random import Random

import pytest

from tetrad.engine_core_svc.core.adapter import LoraRef
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.engine.adapters_wire import encode_lora_list
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler import adapters as module
from tetrad.engine_core_svc.scheduler.adapters import ORDERS_OF_ARRIVAL, AdapterLimits, Adapters, NoAdapters
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.services.errors import FailedPrecondition, InvalidRequest, NotFound, Overloaded, Unsupported
from tetrad.services.message_size import BATCH_BYTES, LEAST_MAX_MESSAGE_BYTES
from tetrad.v1.engine_core_pb2 import SchedulerStats

WAITING, RUNNING = RequestStatus.WAITING, RequestStatus.RUNNING
PARKED = RequestStatus.WAITING_FOR_LORA


def ref(number, **fields):
    return LoraRef(**{"name": f"a{number}", "lora_id": number, "path": f"/a{number}", **fields})


class House:
    """Adapters, what they ask of the worker, and requests in the order of their numbers."""

    def __init__(self, max_loras=1, max_cpu_loras=2, *, policy="fcfs", is_up=True):
        self.adapters = Adapters(AdapterLimits(max_loras, max_cpu_loras), ORDERS_OF_ARRIVAL[policy])
        self.wanted, self.evicted, self.released, self.num_requests, self.returned = [], [], [], 0, 100
        self.adapters.on_wanted = lambda adapter: self.wanted.append(adapter.ref.name)
        self.adapters.on_evicted = lambda adapter: self.evicted.append(adapter.ref.name)
        self.adapters.bind(self.released.append, lambda: self.returned)
        if is_up:
            self.adapters.worker_ready()

    def load(self, *numbers, digest=b"1"):
        for number in numbers:
            adapter = self.adapters.resolve(ref(number))
            self.adapters.want(adapter)
            self.adapters.loaded(adapter, digest)
        self.adapters.refill()

    def request(self, number, priority=0):
        """A request that joins the queue or is parked, as request states do it."""
        self.num_requests += 1
        adapter = None if number is None else self.adapters.resolve(ref(number))
        request = Request(
            self.num_requests, f"r{self.num_requests}", [1, 2], 2, 9, priority=priority,
            sequence_number=self.num_requests, adapter=adapter,
        )  # fmt: skip
        self.adapters.begin(request)
        if not self.adapters.admits(request):
            request.move_to(PARKED)
            self.adapters.park(request)
        return request

    def end(self, request, status=RUNNING):
        self.adapters.end(request, status)

    def names(self, attribute):
        return [adapter.ref.name for adapter in self.adapters if getattr(adapter, attribute)]


# --- names ---------------------------------------------------------------------------------------------------------------


def test_an_engine_without_adapters_refuses_them_by_name():
    with pytest.raises(Unsupported, match="'a1' cannot be used: start with enable_lora") as refused:
        NoAdapters().resolve(ref(1))

    assert refused.value.field == "lora_request"
    assert NoAdapters().admits(Request(1, "r", [1], 1, 2))
    assert (NoAdapters().running_names, NoAdapters().waiting_names) == ([], [])


def test_a_number_means_one_adapter():
    house = House()
    adapter = house.adapters.resolve(ref(1))

    assert house.adapters.resolve(ref(1)) is adapter
    assert house.adapters.get(1) is adapter
    assert list(house.adapters) == [adapter]
    with pytest.raises(InvalidRequest, match="Adapter id 1 is 'a1' at /a1, not 'b' at /a1") as refused:
        house.adapters.resolve(ref(1, name="b"))
    assert refused.value.field == "lora_request"


def test_keys_of_versions_differ():
    house = House()
    adapters = [house.adapters.resolve(ref(number)) for number in (1, 2, 3)]

    assert [adapter.key - adapters[0].key for adapter in adapters] == [0, 1, 2]
    assert 1 <= adapters[0].key < 1 << 30


@pytest.mark.parametrize("fields", [{"lora_id": 0}, {"name": ""}, {"path": ""}])
def test_an_adapter_has_a_name_a_path_and_a_number(fields):
    with pytest.raises(InvalidRequest, match="lora_request needs a name, a path and an id of at least 1"):
        House().adapters.add(ref(7, **fields))


def test_the_smallest_number_is_1():
    assert House().adapters.add(ref(1)).is_current


def test_as_many_adapters_are_known_as_the_limit_says(monkeypatch):
    monkeypatch.setattr(module, "_MAX_KNOWN", 2)
    house = House()
    for number in (1, 2):
        house.adapters.resolve(ref(number))

    with pytest.raises(Overloaded, match="2 adapters are known") as refused:
        house.adapters.resolve(ref(3))
    assert refused.value.retry_after_s == 1.0


@pytest.mark.parametrize(("field", "most"), [("name", 512), ("path", 2048), ("base_model_name", 512)])
def test_what_an_adapter_is_called_has_a_limit(field, most):
    adapters = House().adapters
    adapters.add(ref(1, **{field: "é" * (most // 2)}))

    with pytest.raises(InvalidRequest, match=f"lora_request.{field} has {most + 2} bytes of UTF-8, the limit is {most}"):
        adapters.add(ref(2, **{field: "é" * (most // 2 + 1)}))


def test_messages_of_the_smallest_limit_list_all_adapters_and_have_a_steps_statistics():
    """With the longest names, and as many as the engine core takes."""
    house = House(max_loras=10_000, max_cpu_loras=10_000)
    names = {"name": "n" * 512, "path": "p" * 2048, "base_model_name": "b" * 512}
    adapters = [house.adapters.add(ref(number, **names)) for number in range(1, 10_001)]
    for adapter in adapters:
        adapter.num_admitted = 1

    pages = [encode_lora_list(adapters[::-1], 0)]
    while pages[-1].has_more:
        pages.append(encode_lora_list(adapters[::-1], pages[-1].loras[-1].id))
    stats = SchedulerStats(running_lora_adapters=house.adapters.running_names)

    assert [lora.id for page in pages for lora in page.loras] == list(range(1, 10_001))
    assert max(page.ByteSize() for page in pages) < LEAST_MAX_MESSAGE_BYTES
    assert stats.ByteSize() <= BATCH_BYTES // 10


def test_the_adapters_that_requests_wait_for_are_named_up_to_a_limit():
    house = House(max_loras=1, max_cpu_loras=1000)
    house.load(1)
    house.request(1)
    for number in range(2, 302):
        house.request(number)

    assert house.adapters.waiting_names == [f"a{number}" for number in range(2, 130)]


def test_an_unknown_number_is_named():
    for call in (House().adapters.get, House().adapters.remove, House().adapters.pin):
        with pytest.raises(NotFound, match="no adapter with id 5") as missing:
            call(5)
        assert missing.value.reason == "LORA_NOT_FOUND"


# --- turns ---------------------------------------------------------------------------------------------------------------


def test_the_first_request_of_an_adapter_has_it_loaded_and_then_runs():
    house = House()
    request = house.request(1)
    adapter = request.adapter

    assert (house.wanted, house.released, adapter.is_loading) == (["a1"], [], True)
    assert house.adapters.waiting_names == ["a1"]
    assert house.adapters.loaded(adapter, b"1") == []
    assert house.released == [request]
    assert (adapter.is_resident, adapter.is_loading, adapter.is_active) == (True, False, True)
    assert (house.adapters.running_names, house.adapters.waiting_names) == (["a1"], [])


def test_requests_without_an_adapter_never_wait():
    house = House()
    plain = house.request(None)
    house.end(plain)

    assert plain.status is WAITING
    assert house.released == []


def test_requests_of_an_active_adapter_join_at_once():
    house = House()
    house.load(1)
    house.request(1)
    second = house.request(1)

    assert second.status is WAITING
    assert second.adapter.num_admitted == 2


def test_an_adapter_on_the_worker_that_is_not_active_becomes_so_for_its_request():
    house = House()
    house.load(1)
    request = house.request(1)

    assert house.released == [request]
    assert house.wanted == ["a1"]


def test_another_adapter_waits_until_the_active_one_has_no_request():
    house = House(max_loras=1)
    house.load(1, 2)
    first, second, other = house.request(1), house.request(1), house.request(2)

    house.end(first)
    assert other not in house.released
    house.end(second)
    assert house.released[-1] is other
    assert house.names("is_active") == ["a2"]


def test_as_many_adapters_are_active_as_the_limit_says():
    house = House(max_loras=2, max_cpu_loras=3)
    house.load(1, 2, 3)
    requests = [house.request(number) for number in (1, 2, 3)]

    assert house.names("is_active") == ["a1", "a2"]
    house.end(requests[1])
    assert house.names("is_active") == ["a1", "a3"]


def test_the_place_goes_to_the_adapter_whose_request_has_waited_longest():
    house = House(max_loras=1, max_cpu_loras=3)
    house.load(1, 2, 3)
    running = house.request(1)
    third, second, more = house.request(3), house.request(2), house.request(3)
    house.end(running)

    assert house.released[1:] == [third, more]
    for request in (third, more):
        house.end(request)
    assert house.released[3:] == [second]


def test_with_priorities_the_place_goes_to_the_most_urgent():
    house = House(max_loras=1, max_cpu_loras=3, policy="priority")
    house.load(1, 2, 3)
    running = house.request(1)
    house.request(3)
    urgent = [house.request(2, priority=1), house.request(2), house.request(2, priority=2)]
    house.end(running)

    assert house.released[1:] == [urgent[2], urgent[0], urgent[1]]


def test_64_requests_of_an_active_adapter_pass_one_that_waits(monkeypatch):
    monkeypatch.setattr(module, "_LET_IN_WHILE_OTHERS_WAIT", 3)
    house = House(max_loras=1)
    house.load(1, 2)
    mine = [house.request(1)]
    house.request(2)
    mine += [house.request(1) for _ in range(3)]

    assert [request.status for request in mine] == [PARKED, WAITING, WAITING, PARKED]
    assert house.adapters.waiting_names == ["a2", "a1"]
    for request in mine[:3]:
        house.end(request)
    assert house.names("is_active") == ["a2"]
    # It is counted anew when its turn comes again.
    assert mine[3] not in house.released


def test_the_count_of_those_that_passed_begins_anew_with_each_turn(monkeypatch):
    monkeypatch.setattr(module, "_LET_IN_WHILE_OTHERS_WAIT", 2)
    house = House(max_loras=1)
    house.load(1, 2)
    for _ in range(3):
        house.end(house.request(1))
    house.request(1)
    house.request(2)

    assert house.request(1).status is WAITING
    assert house.request(1).status is PARKED


def test_a_request_that_ends_while_it_waits_frees_its_place_in_line():
    house = House(max_loras=1, max_cpu_loras=3)
    house.load(1, 2, 3)
    running, second, third = house.request(1), house.request(2), house.request(3)
    house.end(second, PARKED)
    assert house.adapters.waiting_names == ["a3"]
    house.end(running)

    assert house.released == [running, third]
    assert second.adapter.num_requests == 0


def test_one_of_several_that_wait_ends_alone():
    house = House(max_loras=1)
    house.load(1, 2)
    running, first, second = house.request(1), house.request(2), house.request(2)
    house.end(first, PARKED)
    house.end(running)

    assert house.released == [running, second]


def test_a_request_that_ends_before_its_grammar_was_ready_held_no_place():
    house = House()
    house.load(1)
    request = house.request(1)
    other = Request(9, "r9", [1], 1, 9, adapter=request.adapter, status=RequestStatus.WAITING_FOR_GRAMMAR)
    house.adapters.begin(other)
    house.end(other, RequestStatus.WAITING_FOR_GRAMMAR)

    assert (request.adapter.num_admitted, request.adapter.num_requests) == (1, 1)


# --- places on the worker --------------------------------------------------------------------------------------------------


def test_the_least_recently_used_adapter_makes_room():
    house = House(max_cpu_loras=2)
    house.load(1, 2)
    for number in (2, 1):
        house.end(house.request(number))
    house.request(3)

    assert (house.evicted, house.wanted[-1]) == (["a2"], "a3")
    assert house.names("is_resident") == ["a1"]


def test_an_active_adapter_makes_no_room_and_the_next_one_waits():
    house = House(max_loras=1, max_cpu_loras=1)
    house.load(1)
    running = house.request(1)
    house.request(2)

    assert (house.evicted, house.wanted) == ([], ["a1"])
    house.end(running)
    assert (house.evicted, house.wanted) == (["a1"], ["a1", "a2"])


def test_an_adapter_that_a_plan_in_flight_names_makes_room_when_that_is_back():
    house = House(max_cpu_loras=1)
    house.load(1)
    request = house.request(1)
    request.last_step_id, house.returned = 5, 4
    house.end(request)
    house.request(2)

    assert house.evicted == []
    house.returned = 5
    house.adapters.note_step()
    assert (house.evicted, house.wanted) == (["a1"], ["a1", "a2"])


def test_the_last_step_of_an_adapter_is_that_of_its_last_request():
    house = House()
    house.load(1)
    first, second = house.request(1), house.request(1)
    first.last_step_id, second.last_step_id = 8, 3
    house.end(first)
    house.end(second)

    assert first.adapter.last_step_id == 8


def test_the_next_in_line_is_not_overtaken_while_it_waits_for_a_place():
    """Plans in flight name a1 and a2, so a3 has no place; a2 waits behind it and could run."""
    house = House(max_loras=1, max_cpu_loras=2)
    house.load(1, 2)
    house.returned = 6
    for number in (2, 1):
        request = house.request(number)
        request.last_step_id = 7
        if number == 1:
            house.request(3)
            later = house.request(2)
        house.end(request)

    assert (later in house.released, house.evicted) == (False, [])
    house.returned = 7
    house.adapters.note_step()
    assert (house.evicted, house.wanted[-1], house.released[-1]) == (["a1"], "a3", later)


def test_an_adapter_whose_request_waits_longer_is_not_evicted():
    house = House(max_loras=1, max_cpu_loras=2)
    house.load(1, 2)
    house.request(1)
    house.request(2)
    house.request(3)

    assert (house.evicted, house.wanted) == ([], ["a1", "a2"])


def test_an_adapter_whose_request_waits_less_is_evicted_behind_idle_ones():
    house = House(max_loras=1, max_cpu_loras=3, policy="priority")
    house.load(1, 2, 3)
    house.request(1)
    house.request(2)
    house.request(4, priority=1)

    assert house.evicted == ["a3"]
    house.request(5, priority=1)
    assert house.evicted == ["a3", "a2"]


def test_a_pinned_adapter_is_never_evicted():
    house = House(max_cpu_loras=2)
    house.load(1, 2)
    assert house.adapters.pin(1).is_pinned
    house.request(3)

    assert house.evicted == ["a2"]


def test_one_place_stays_free_of_pins():
    house = House(max_cpu_loras=2)
    house.load(1, 2)
    house.adapters.pin(1)
    house.adapters.pin(1)

    with pytest.raises(FailedPrecondition, match="1 adapters are pinned; of max_cpu_loras 2 one place must stay free"):
        house.adapters.pin(2)


def test_an_operator_loads_an_adapter_once():
    house = House()
    adapter = house.adapters.resolve(ref(1))
    for _ in range(2):
        house.adapters.want(adapter)
    house.adapters.loaded(adapter, b"1")
    house.adapters.want(adapter)

    assert house.wanted == ["a1"]


def test_an_operator_hears_that_all_places_are_in_use():
    house = House(max_loras=1, max_cpu_loras=1)
    house.load(1)
    house.request(1)

    with pytest.raises(Overloaded, match=r"All 1 places for adapters \(max_cpu_loras\) are in use") as refused:
        house.adapters.want(house.adapters.resolve(ref(2)))
    assert refused.value.retry_after_s == 1.0


def test_an_operator_evicts_nothing_that_requests_wait_for():
    house = House(max_loras=1, max_cpu_loras=2)
    house.load(1, 2)
    house.request(1)
    house.request(2)

    with pytest.raises(Overloaded):
        house.adapters.want(house.adapters.resolve(ref(3)))


def test_an_adapter_that_cannot_be_loaded_ends_what_waits_for_it():
    house = House()
    requests = [house.request(1) for _ in range(2)]
    adapter = requests[0].adapter

    assert house.adapters.failed(adapter) == requests
    assert not (adapter.is_loading or adapter.is_resident or adapter.was_resident)
    for request in requests:
        house.end(request, PARKED)
    house.adapters.discard_if_new(adapter)
    assert list(house.adapters) == []
    assert house.adapters.failed(adapter) == []


def test_an_adapter_that_requests_have_is_not_forgotten():
    house = House()
    adapter = house.request(1).adapter
    house.adapters.discard_if_new(adapter)

    assert list(house.adapters) == [adapter]


# --- versions ------------------------------------------------------------------------------------------------------------


def replaced(house):
    """Replace a1; return both versions."""
    before = house.adapters.get(1)
    after = house.adapters.add(ref(1, load_inplace=True))
    house.adapters.want(after)
    house.adapters.loaded(after, b"2")
    house.adapters.replace(after)
    return before, after


def test_new_requests_get_the_new_version_and_the_old_one_goes_at_once_if_nobody_has_it():
    house = House(max_cpu_loras=3)
    house.load(1)
    house.adapters.pin(1)
    before, after = replaced(house)

    assert house.adapters.resolve(ref(1)) is after
    assert (before.is_current, before.is_pinned, after.is_current, after.is_pinned) == (False, False, True, True)
    assert (house.evicted, before.is_resident) == (["a1"], False)
    assert list(house.adapters) == [after]


def test_a_version_is_not_current_before_it_replaces_another():
    house = House()
    house.load(1)
    after = house.adapters.add(ref(1))

    assert not after.is_current
    assert house.adapters.get(1) is not after
    house.adapters.discard(after)
    assert house.adapters.get(1).is_current


def test_replacing_a_version_by_itself_keeps_it():
    house = House()
    house.load(1)
    adapter = house.adapters.pin(1)
    house.adapters.replace(adapter)

    assert (adapter.is_current, adapter.is_pinned, adapter.is_resident, house.evicted) == (True, True, True, [])


def test_the_old_version_stays_for_those_that_have_it():
    house = House(max_loras=2, max_cpu_loras=3)
    house.load(1)
    request = house.request(1)
    before, _ = replaced(house)

    assert (house.evicted, before.is_resident) == ([], True)
    request.last_step_id, house.returned = 7, 6
    house.end(request)
    assert house.evicted == []
    house.returned = 7
    house.adapters.note_step()
    assert house.evicted == ["a1"]
    house.adapters.note_step()
    assert house.evicted == ["a1"]


def test_an_adapter_in_use_is_not_removed():
    house = House()
    house.load(1)
    request = house.request(1)

    with pytest.raises(FailedPrecondition, match="'a1' is in use by 1 unfinished requests") as refused:
        house.adapters.remove(1)
    assert refused.value.reason == "LORA_IN_USE"
    house.end(request)
    assert house.adapters.remove(1) is request.adapter
    assert (house.evicted, list(house.adapters), request.adapter.is_current) == (["a1"], [], False)


def test_an_adapter_that_is_not_on_the_worker_is_forgotten_without_a_word():
    house = House()
    house.adapters.resolve(ref(1))
    house.adapters.remove(1)

    assert house.evicted == []
    assert house.adapters.resolve(ref(1)).is_current


# --- a lost worker -------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_while_there_is_no_worker():
    house = House(is_up=False)
    house.request(1)
    assert house.wanted == []

    house.adapters.worker_ready()
    assert house.wanted == ["a1"]


def test_the_next_worker_gets_what_requests_wait_for_and_then_what_the_last_one_had():
    house = House(max_loras=1, max_cpu_loras=3)
    house.load(1, 2, 3)
    for number in (3, 1, 2):
        house.end(house.request(number))
    running = house.request(1)
    house.adapters.forget_worker()
    house.adapters.retreat(running)
    assert (house.names("is_resident"), house.names("is_active"), running.adapter.num_admitted) == ([], [], 0)
    assert (house.adapters.waiting_names, running.adapter.last_step_id) == (["a1"], -1)
    house.wanted.clear()

    house.adapters.worker_ready()
    assert house.wanted == ["a1", "a2", "a3"]
    house.adapters.worker_ready()
    assert house.wanted == ["a1", "a2", "a3"]


def test_the_next_worker_gets_no_more_than_it_has_places_for():
    house = House(max_loras=1, max_cpu_loras=2)
    house.load(1, 2)
    house.adapters.forget_worker()
    house.request(3)
    house.wanted.clear()
    house.adapters.worker_ready()

    assert house.wanted == ["a3", "a2"]


def test_an_adapter_that_was_being_loaded_counts_as_one_that_was_there():
    house = House()
    house.adapters.want(house.adapters.resolve(ref(1)))
    house.adapters.forget_worker()
    house.adapters.worker_ready()

    assert house.wanted == ["a1", "a1"]


def test_requests_keep_their_order_when_they_retreat():
    house = House()
    house.load(1)
    requests = [house.request(1) for _ in range(3)]
    house.adapters.forget_worker()
    for request in reversed(requests):
        house.adapters.retreat(request)
    house.released.clear()
    house.adapters.worker_ready()
    house.adapters.loaded(requests[0].adapter, b"1")

    assert house.released == requests


def test_requests_that_began_with_other_files_cannot_go_on():
    house = House()
    house.load(1)
    began, waited = house.request(1), house.request(1)
    began.token_ids.append(7)
    house.adapters.forget_worker()
    for request in (began, waited):
        request.block_hashes.append(b"of the old files")
        house.adapters.retreat(request)
    house.released.clear()
    house.adapters.worker_ready()

    assert house.adapters.loaded(began.adapter, b"2") == [began]
    assert house.released == []
    assert (began.block_hashes, waited.block_hashes) == ([], [])
    house.adapters.refill()
    assert house.released == [began, waited]


def test_requests_that_began_with_the_same_files_go_on():
    house = House()
    house.load(1)
    request = house.request(1)
    request.token_ids.append(7)
    house.adapters.forget_worker()
    request.block_hashes.append(b"of the files")
    house.adapters.retreat(request)
    house.adapters.worker_ready()

    assert house.adapters.loaded(request.adapter, b"1") == []
    assert request.block_hashes == [b"of the files"]


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
        for adapter in adapters:
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
    assert all(not adapter.num_requests for adapter in adapters)
