"""A scheduler on a bench: requests by short names, a worker that answers what the test says."""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.request import Request, StopRules
from tetrad.engine_core_svc.scheduler.output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler, SchedulerLimits


@dataclass
class Bench:
    """Drives one scheduler. `next_token` decides what the worker samples, from the request's key and known length."""

    scheduler: Scheduler
    next_token: Callable[[int, int], int] = lambda key, length: 1000 + key
    in_flight: deque[tuple[SchedulerOutput, list[tuple[int, int]]]] = field(default_factory=deque)
    plans: list[SchedulerOutput] = field(default_factory=list)
    worker_lengths: dict[int, int] = field(default_factory=dict)
    _keys: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def add(
        self,
        prompt: int | Sequence[int],
        *,
        max_tokens: int = 16,
        priority: int = 0,
        stop: StopRules | None = None,
        max_model_len: int = 8192,
        cache_salt: str = "",
        skip_reading_prefix_cache: bool = False,
    ) -> Request:
        """Add a request; a number means that many distinct tokens that no other request has."""
        key = next(self._keys)
        tokens = [key * 10_000 + i for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
        request = Request(
            key=key, request_id=f"r{key}", token_ids=tokens, num_prompt_tokens=len(tokens),
            max_total_tokens=min(max_model_len, len(tokens) + max_tokens), stop=stop or StopRules(), handle=key,
            priority=priority, arrival_time=float(key), sequence_number=key, cache_salt=cache_salt,
            skip_reading_prefix_cache=skip_reading_prefix_cache,
        )  # fmt: skip
        self.scheduler.add_request(request)
        return request

    def plan(self) -> SchedulerOutput | None:
        """Make a plan and let the worker run it, without giving its result back yet."""
        plan = self.scheduler.schedule()
        if plan is None:
            return None
        for key in plan.removed_keys:
            self.worker_lengths.pop(key, None)
        columns = plan.cached_requests
        computed = {new.key: new.num_computed_tokens for new in plan.new_requests}
        computed.update(zip(columns.keys, columns.num_computed_tokens, strict=True))
        self.worker_lengths.update({new.key: len(new.token_ids) for new in plan.new_requests})
        sampled = []
        for key, scheduled in plan.num_scheduled_tokens().items():
            if computed[key] + scheduled == self.worker_lengths[key]:
                sampled.append((key, self.next_token(key, self.worker_lengths[key])))
                self.worker_lengths[key] += 1
        self.in_flight.append((plan, sampled))
        self.plans.append(plan)
        return plan

    def deliver(self, tokens: dict[int, Sequence[int]] | None = None) -> list[EngineCoreOutput]:
        """Give the oldest result back; `tokens` replaces what the worker sampled, by key."""
        plan, sampled = self.in_flight.popleft()
        rows: dict[int, Sequence[int]] = {key: (token,) for key, token in sampled} | (tokens or {})
        return self.scheduler.update(ModelRunnerOutput(plan.step_id, list(rows), [tuple(row) for row in rows.values()]))

    def step(self, tokens: dict[int, Sequence[int]] | None = None) -> dict[int, int]:
        """Plan, run and deliver one step; return what was scheduled, by key."""
        plan = self.plan()
        if plan is None:
            return {}
        self.deliver(tokens)
        return plan.num_scheduled_tokens()

    def run(self, *, depth: int = 1, max_steps: int = 5000) -> None:
        """Step until every request has ended, with up to `depth` plans in flight."""
        for _ in range(max_steps):
            while len(self.in_flight) < depth and self.plan() is not None:
                pass
            if not self.in_flight:
                break
            self.deliver()
        assert not self.scheduler.has_requests

    @property
    def num_free(self) -> int:
        return self.scheduler.kv_cache.pool.num_free


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    """Return a maker of benches; keyword arguments are SchedulerLimits' and the cache's."""

    def make(*, num_blocks: int = 10_000, block_size: int = 16, enable_caching: bool = True, **limits: object) -> Bench:
        kv_cache = KVCacheManager(num_blocks, block_size, enable_caching=enable_caching)
        return Bench(Scheduler(SchedulerLimits(**limits), kv_cache))  # type: ignore[arg-type]

    return make
