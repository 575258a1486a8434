"""An engine in front of two ranks that are plain objects: no messages, no carrier, one result a step."""

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from random import Random

import pytest

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.payload import WorkerPayload
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput
from tetrad.engine_core_svc.core.request import StopRules
from tetrad.engine_core_svc.core.wire import SamplingMessage
from tetrad.engine_core_svc.engine.submission_wire import Submission
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.observability.request_spans import RequestSpans
from tetrad.engine_core_svc.scheduler.drafting import NoDrafts
from tetrad.engine_core_svc.service import start_engine
from tetrad.engine_core_svc.sessions.outbox import Notice
from tetrad.engine_core_svc.worker.group import Loss, Weights, WorkerFacts
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout
from tetrad.services.errors import Unavailable
from tetrad.services.observability.tracing import NoTracer
from tetrad.services.request_context import NO_CONTEXT
from tetrad.services.rpc.carrier import GRPC
from tetrad.v1 import types_pb2

VOCAB_SIZE = 1000
LAYOUT = KVCacheLayout(num_blocks=64, block_size=16, max_model_len=256, max_num_batched_tokens=32)


class Rank:
    """Knows each request's tokens, and adds one to the last."""

    def __init__(self):
        self.known = {}
        self.num_steps = 0

    def run(self, plan):
        self.num_steps += 1
        for key in plan.removed_keys:
            self.known.pop(key, None)
        work = {new.key: new.num_computed_tokens + new.num_scheduled_tokens for new in plan.new_requests}
        self.known.update({new.key: list(new.token_ids) for new in plan.new_requests})
        cached = plan.cached_requests
        for key, computed, scheduled in zip(cached.keys, cached.num_computed_tokens, cached.num_scheduled_tokens, strict=True):
            work[key] = computed + scheduled
        sampled = {key: self.known[key][-1] + 1 for key, end in work.items() if end == len(self.known[key])}
        for key, token in sampled.items():
            self.known[key].append(token)
        return ModelRunnerOutput(plan.step_id, list(sampled), [(token,) for token in sampled.values()])


class Stream:
    """A PlanStream to ranks that take turns at random; a step's result is there when each of them has run it."""

    def __init__(self, ranks, random, on_change):
        self.lost, self.instance_id = None, ""
        self.shares_params = self.verifies_drafts = True
        self.has_room = True
        self._ranks, self._random, self._on_change = ranks, random, on_change
        self._plans = [deque() for _ in ranks]
        self._done = [deque() for _ in ranks]
        self._results = []

    @property
    def num_in_flight(self):
        return max(map(len, self._plans)) + max(map(len, self._done)) + len(self._results)

    def dispatch(self, plan):
        for plans in self._plans:
            plans.append(plan)
            asyncio.get_running_loop().call_soon(self._turn)
        self.has_room = self.num_in_flight < 2

    def take_results(self):
        results, self._results = self._results, []
        self.has_room = True
        return results

    def take_transfer_events(self):
        return []

    def take_encoder_events(self):
        return None

    async def close(self):
        for rank in self._ranks:
            rank.known.clear()

    def lose(self):
        self.lost = Loss(Unavailable("Rank 1 has gone."), is_crash=False)
        self._on_change()

    def _turn(self):
        if self.lost is not None:
            return
        place = self._random.choice([place for place, plans in enumerate(self._plans) if plans])
        self._done[place].append(self._ranks[place].run(self._plans[place].popleft()))
        if all(self._done):
            first, *others = [done.popleft() for done in self._done]
            assert all(other == first for other in others)
            self._results.append(first)
            self._on_change()


class TwoRanks:
    """A WorkerGroup."""

    def __init__(self, seed):
        self.epoch, self.pause, self.computes_on_cores, self.weights = 1, None, False, Weights()
        self.ranks = [Rank(), Rank()]
        self.streams = []
        self._random = Random(seed)

    async def bring_up(self):
        return self.require_up()

    def require_up(self):
        return LAYOUT, WorkerFacts("plain", "float32", VOCAB_SIZE, 256)

    async def connect(self, on_change):
        self.streams.append(Stream(self.ranks, self._random, on_change))
        return self.streams[-1]


@asynccontextmanager
async def engine_of(workers):
    settings = EngineCoreSettings(model="plain", tokenizer_targets=())
    engine = await start_engine(settings, workers, EngineMetrics(), RequestSpans(NoTracer()), GRPC, NoDrafts())
    running = asyncio.create_task(engine.run())
    yield engine
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await engine.close()


def submission(handle, *, num_prompt_tokens, max_tokens):
    params = types_pb2.SamplingParams(max_tokens=max_tokens)
    return Submission(
        request_id=f"r{handle}",
        handle=handle,
        prompt_token_ids=[*range(100, 99 + num_prompt_tokens), handle],
        output_token_ids=[],
        stop=StopRules(max_tokens=max_tokens),
        priority=0,
        arrival_time=float(handle),
        timeout_s=None,
        cache_salt="",
        skip_reading_prefix_cache=False,
        constraint=None,
        payload=WorkerPayload(SamplingMessage(params)),
        resumed=False,
        context=NO_CONTEXT,
    )


async def tokens_of(session, *handles):
    """Return each handle's tokens, read until all have ended."""
    tokens, running = {handle: [] for handle in handles}, set(handles)
    while running:
        message = await asyncio.wait_for(session.outbox.get(), 10)
        for output in () if isinstance(message, Notice) else message.outputs:
            tokens[output.request.handle] += output.new_token_ids
            if output.finish_reason is not None:
                running.discard(output.request.handle)
    return tokens


@pytest.mark.parametrize("seed", range(3))
async def test_two_ranks_answer_each_step_once(seed):
    workers = TwoRanks(seed)

    async with engine_of(workers) as engine:
        session = engine.open_session("test")
        for handle in (10, 20, 30):
            engine.arrivals.add(session, submission(handle, num_prompt_tokens=2 * handle, max_tokens=5))
        tokens = await tokens_of(session, 10, 20, 30)

    assert tokens == {handle: [handle + 1 + i for i in range(5)] for handle in (10, 20, 30)}
    assert workers.ranks[0].num_steps == workers.ranks[1].num_steps


async def test_a_group_that_loses_a_rank_loses_no_token():
    workers = TwoRanks(seed=1)

    async with engine_of(workers) as engine:
        session = engine.open_session("test")
        engine.arrivals.add(session, submission(10, num_prompt_tokens=40, max_tokens=20))
        while workers.ranks[0].num_steps < 8:  # noqa: ASYNC110 - one turn of the event loop at a time
            await asyncio.sleep(0)
        workers.streams[0].lose()
        tokens = await tokens_of(session, 10)

    assert tokens == {10: [11 + i for i in range(20)]}
    assert len(workers.streams) == 2
