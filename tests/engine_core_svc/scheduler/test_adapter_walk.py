"""The walk of test_random_walk.py with LoRA adapters, of which few are active and few are on the worker."""

import math
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tests.engine_core_svc.scheduler.fake_lora_engine import ref
from tests.engine_core_svc.scheduler.test_random_walk import NUM_BLOCKS, SHARE, Walk
from tetrad.engine_core_svc.core.request import RequestStatus
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL

NUM_ADAPTERS = 4


class AdapterWalk(Walk):
    """Every request has one of a few adapters, or none. `lora_limits` is of the subclass."""

    @property
    def adapters(self):
        return self.bench.scheduler.adapters

    @rule(data=st.data(), fails=st.integers(0, 4))
    @precondition(lambda self: self.bench.wanted)
    def end_load(self, data, fails):
        self._end_load(data.draw(st.sampled_from(range(len(self.bench.wanted)))), has_failed=fails == 0)

    def _end_load(self, index, *, has_failed):
        adapter = self.bench.wanted.pop(index)
        if not has_failed:
            self.adapters.loaded(adapter, b"digest")
            self.adapters.refill()
            return
        keys = [request.key for request in self.adapters.waiting_for(adapter)]
        self._note_ends(self.bench.scheduler.finish_requests(keys, RequestStatus.FINISHED_ERROR))
        self.adapters.failed(adapter)
        self.adapters.registry.discard(adapter)
        self.adapters.refill()

    def _plan(self):
        plan = super()._plan()
        for key in plan.keys() if plan is not None else ():
            adapter = self.bench.scheduler.requests[key].adapter
            assert adapter is None or (adapter.is_active and adapter.is_resident)
        return plan

    def _lose_worker(self, *, crashed):
        self.bench.wanted.clear()
        super()._lose_worker(crashed=crashed)
        self.adapters.worker_ready()

    def _check_order(self, plan):
        """Requests that wait for their adapters are overtaken."""

    def _end_transfer(self):
        if not self.bench.wanted:
            return False
        self._end_load(0, has_failed=False)
        return True

    @invariant()
    def adapters_keep_their_limits(self):
        versions = self.adapters.registry.versions.values()
        assert sum(each.is_active for each in versions) <= self.lora_limits.max_loras
        assert sum(each.is_resident or each.is_loading for each in versions) <= self.lora_limits.max_cpu_loras
        assert {each.key for each in versions if each.is_loading} == {each.key for each in self.bench.wanted}

    @invariant()
    def every_request_is_in_exactly_one_place(self):
        scheduler = self.bench.scheduler
        parked = [r.key for each in self.adapters.registry.versions.values() for r in self.adapters.waiting_for(each)]
        places = [*parked, *(r.key for r in scheduler.running), *(r.key for r in scheduler.waiting)]
        assert sorted(places) == sorted(scheduler.requests)
        assert set(self.ends) | set(scheduler.requests) == {r.key for r in self.requests}


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@pytest.mark.parametrize("limits", [AdapterLimits(1, 1), AdapterLimits(1, 2), AdapterLimits(2, 3)], ids=str)
def test_random_walks_with_adapters_lose_no_request(make_bench, compiled, vocabulary, limits):
    """Suspects run alone with their adapters, too."""

    def make(**given):
        """Requests that run alone, to compare with, have no adapters."""
        if not given:
            return make_bench()
        adapters, random = Adapters(limits, ORDERS_OF_ARRIVAL[given["policy"]]), Random(7)
        bench = make_bench(adapters=adapters, **given)
        bench.wanted, add = [], bench.add

        def add_with_adapter(prompt, **fields):
            number = random.randint(0, NUM_ADAPTERS)
            return add(prompt, adapter=adapters.resolve(ref(number)) if number else None, **fields)

        bench.add, adapters.on_wanted = add_with_adapter, bench.wanted.append
        adapters.worker_ready()
        return bench

    given = {"make_bench": staticmethod(make), "letters": compiled("regex", "[a-e]{4}"), "vocabulary": vocabulary}
    given |= {"num_blocks": NUM_BLOCKS, "lora_limits": limits}
    run_state_machine_as_test(
        type("GivenWalk", (AdapterWalk,), given),
        settings=settings(max_examples=math.ceil(20 * SHARE), stateful_step_count=60, suppress_health_check=list(HealthCheck)),
    )
