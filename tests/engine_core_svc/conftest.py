"""Fixtures: a scheduler with short request names, and a worker that returns the test's results."""

import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.engine_core_svc.kv_cache.worker_memory import group_of
from tests.engine_core_svc.service_fakes import Stack
from tests.toy_tokenizer import EOS_IDS, toy_tokenizer
from tetrad.engine_core_svc.core.adapter import Adapter
from tetrad.engine_core_svc.core.draft_metrics import MakeMetrics
from tetrad.engine_core_svc.core.media import EncoderInput, MediaSpan
from tetrad.engine_core_svc.core.message_sizes import MessageSizes
from tetrad.engine_core_svc.core.payload import EncodedParams, WorkerPayload
from tetrad.engine_core_svc.core.plan import EngineCoreOutput, ModelRunnerOutput, PoolingOutput, SchedulerOutput
from tetrad.engine_core_svc.core.request import ALONE, Purpose, Request, RequestStatus, StopRules
from tetrad.engine_core_svc.kv_cache.block_pool import BlockWatch
from tetrad.engine_core_svc.kv_cache.connector import ConnectorChain, KVConnector
from tetrad.engine_core_svc.kv_cache.host_tier import HostTier
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.media.planning import Media
from tetrad.engine_core_svc.scheduler.adapters import Adapters
from tetrad.engine_core_svc.scheduler.budget import StageFillings
from tetrad.engine_core_svc.scheduler.drafting import Drafts
from tetrad.engine_core_svc.scheduler.fan_out_throttle import FanOutThrottle
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.prefill_throttle import PrefillThrottle
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.structured_output.compiled import CompiledGrammar
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language
from tetrad.engine_core_svc.structured_output.filler import Advance, InlineFiller
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.grammars import Grammars
from tetrad.engine_core_svc.structured_output.vocabulary import Vocabulary, ids_in
from tetrad.services.errors import InternalError, TetradError

SPECIAL_ID = 2
VOCAB_SIZE = 340
"""Of the toy model: the tokenizer's ids and some that pad its table."""


@dataclass
class WorkerClock:
    """Counts the seconds that steps take; nothing else takes time."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Bench:
    """Drives one scheduler.

    `next_token` decides what the worker samples, from the request's key and known length; `accepts` how many drafts it keeps,
    of the number that it samples itself; `takes_s` how many seconds it says a step took, from the tokens of its requests.
    """

    scheduler: Scheduler
    next_token: Callable[[int, int], int] = lambda key, length: 1000 + key
    accepts: Callable[[int], int] = lambda num_right: num_right
    takes_s: Callable[[list[int]], float] = lambda tokens: 0.0
    in_flight: deque[tuple[SchedulerOutput, dict[int, list[int]]]] = field(default_factory=deque)
    plans: list[SchedulerOutput] = field(default_factory=list)
    worker_lengths: dict[int, int] = field(default_factory=dict)
    set_aside: set[int] = field(default_factory=set)
    clock: WorkerClock = field(default_factory=WorkerClock)
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
        status: RequestStatus = RequestStatus.WAITING,
        purpose: Purpose = Purpose.GENERATION,
        call: int = 0,
        adapter: Adapter | None = None,
        media: Sequence[MediaSpan] = (),
    ) -> Request:
        """Add a request; a number means that many distinct tokens that no other request has. Call 0: one of its own."""
        key = next(self._keys)
        tokens = [key * 10_000 + i for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
        request = Request(
            key=key, request_id=f"r{key}", token_ids=tokens, num_prompt_tokens=len(tokens),
            max_total_tokens=min(max_model_len, len(tokens) + max_tokens), stop=stop or StopRules(), handle=key,
            priority=priority, arrival_time=float(key), sequence_number=key, cache_salt=cache_salt,
            skip_reading_prefix_cache=skip_reading_prefix_cache, status=status, purpose=purpose,
            call=(1, call) if call else ALONE, adapter=adapter, payload=WorkerPayload(EncodedParams(), media=tuple(media)),
            sizes=MessageSizes(has_media=bool(media)),
        )  # fmt: skip
        self.scheduler.add_request(request, {span.identifier: EncoderInput(100) for span in media})
        return request

    def add_constrained(
        self, prompt: int, grammar: CompiledGrammar, *, constraint: Constraint | None = None, **fields
    ) -> Request:
        """Add a request whose grammar is ready."""
        request = self.add(prompt, status=RequestStatus.WAITING_FOR_GRAMMAR, **fields)
        self.scheduler.grammar_ready(request, GrammarState(constraint or Constraint(Language("regex", "")), grammar))
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
        sampled, masks = {}, self.masks(plan)
        for key, scheduled in plan.num_scheduled_tokens().items():
            draft_ids = plan.draft_tokens.get(key, ())
            if computed[key] + scheduled == self.worker_lengths[key] + len(draft_ids):
                sampled[key] = self._verify(key, draft_ids, masks.get(key))
                self.worker_lengths[key] += len(sampled[key])
        self.in_flight.append((plan, sampled))
        self.plans.append(plan)
        return plan

    def _verify(self, key: int, draft_ids: Sequence[int], masks: list[list[int]] | None) -> list[int]:
        """Sample in the place of each draft and behind them; return the drafts that are kept and the token behind these."""
        length = self.worker_lengths[key]
        tokens = [self.next_token(key, length + place) for place in range(len(draft_ids) + 1)]
        if masks is not None:
            assert len(masks) == len(tokens)
            tokens = [ids[token % len(ids)] if ids else token for token, ids in zip(tokens, masks, strict=True)]
        num_right = next((i for i, draft_id in enumerate(draft_ids) if draft_id != tokens[i]), len(draft_ids))
        return tokens[: self.accepts(num_right) + 1]

    def deliver(
        self, tokens: dict[int, Sequence[int]] | None = None, *, failed: Collection[int] = ()
    ) -> list[EngineCoreOutput]:
        """Give the oldest result back; `tokens` replaces what was sampled, by key; `failed` requests bring none any more."""
        plan, sampled = self.in_flight.popleft()
        self.set_aside = (self.set_aside - set(plan.removed_keys)) | set(failed)
        rows: dict[int, Sequence[int]] = sampled | (tokens or {})
        rows = {key: row for key, row in rows.items() if key not in self.set_aside}
        failures: dict[int, TetradError] = {key: InternalError("It failed.") for key in failed}
        result = ModelRunnerOutput(plan.step_id, list(rows), [tuple(row) for row in rows.values()], failures=failures)
        result.pooling_outputs = {key: self.vector(key) for key in rows if self._is_pooled(key)}
        result.token_ids = [() if key in result.pooling_outputs else row for key, row in rows.items()]
        result.compute_s = self.takes_s(list(plan.num_scheduled_tokens().values()))
        self.clock.now_s += result.compute_s
        outputs = self.scheduler.update(result)
        return outputs + self.scheduler.finish_constrained()

    def _is_pooled(self, key: int) -> bool:
        request = self.scheduler.requests.get(key)
        return request is not None and request.purpose is Purpose.POOLING

    @staticmethod
    def vector(key: int) -> PoolingOutput:
        """Return what the worker brings a request that is pooled."""
        return PoolingOutput("float32", (2,), np.array([key, -key], "<f4").tobytes())

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

    @staticmethod
    def masks(plan: SchedulerOutput) -> dict[int, list[list[int]]]:
        """Return the ids that a plan allows in each place, by the keys of its constrained requests."""
        found = plan.grammar_masks
        if found is None:
            return {}
        rows = np.frombuffer(found.masks, "<u4").reshape(len(found.keys), found.num_words)
        masks: dict[int, list[list[int]]] = {}
        for key, row in zip(found.keys, rows, strict=True):
            masks.setdefault(key, []).append(ids_in(row))
        return masks

    @property
    def num_free(self) -> int:
        return self.scheduler.kv_cache.pool.num_free


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    """Return a maker of benches; keyword arguments are SchedulerLimits' and the cache's."""

    def make(
        *,
        num_blocks: int = 10_000,
        block_size: int = 16,
        enable_caching: bool = True,
        throttle: PrefillThrottle | None = None,
        connector: KVConnector | None = None,
        num_host_blocks: int = 0,
        grammars: Grammars | None = None,
        drafts: Drafts | None = None,
        fan_outs: FanOutThrottle | None = None,
        adapters: Adapters | None = None,
        stages: StageFillings | None = None,
        media: Media | None = None,
        windows: Sequence[int | str | None] = (None,),
        make_draft_metrics: MakeMetrics | None = None,
        watch: BlockWatch | None = None,
        **limits: object,
    ) -> Bench:
        if num_host_blocks:
            connector = ConnectorChain([HostTier(num_host_blocks), *([connector] if connector else [])])
        scheduler_limits = SchedulerLimits(**limits)
        kv_cache = KVCacheManager(
            num_blocks, block_size, enable_caching=enable_caching, connector=connector,
            groups=[group_of(window) for window in windows], max_step_tokens=scheduler_limits.max_num_batched_tokens,
            watch=watch,
        )  # fmt: skip
        clock = WorkerClock()
        scheduler = Scheduler(
            scheduler_limits, kv_cache, grammars, throttle, drafts, fan_outs, adapters, stages, media, clock, make_draft_metrics
        )
        return Bench(scheduler, clock=clock)

    return make


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    """The toy model's tokenizer."""
    return toy_tokenizer()


@pytest.fixture(scope="session")
def vocabulary(tokenizer_json) -> Vocabulary:
    """The toy model's."""
    return Vocabulary(tokenizer_json, EOS_IDS, VOCAB_SIZE)


@pytest.fixture
def compiled(vocabulary) -> Callable[..., CompiledGrammar]:
    """Return a compiler of languages over the toy vocabulary."""
    return lambda kind, text, **options: CompiledGrammar(Language(kind, text, **options), vocabulary)


@dataclass
class Writer:
    """Writes what a constraint allows, token by token, choosing as the test says."""

    vocabulary: Vocabulary
    state: GrammarState
    filler: InlineFiller = field(default_factory=InlineFiller)
    token_ids: list[int] = field(default_factory=list)

    @property
    def allowed(self) -> list[int]:
        return ids_in(self.state.mask)

    @property
    def text(self) -> str:
        return self.vocabulary.tokens.decode_bytes([i for i in self.token_ids if i not in EOS_IDS]).decode()

    def write(self, *token_ids: int) -> None:
        """Sample these ids, one by one; each must be allowed."""
        for token_id in token_ids:
            assert self.state.allows(token_id)
            self.token_ids.append(token_id)
            self.filler.run([Advance(self.state, [token_id])])

    def write_text(self, text: str) -> None:
        self.write(*self.vocabulary.tokens.tokenize_str(text))

    def takes(self, text: str) -> bool:
        """Return whether this text, from here, is allowed and may end there."""
        matcher = self.state.matcher.deep_copy()
        ids = self.vocabulary.tokens.tokenize_str(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def run(self, random: Random, *, closers: str = '"}],', max_tokens: int = 2000) -> str:
        """Write until the constraint or EOS ends it; half of the time something that closes, if that is allowed."""
        closing = set(self.vocabulary.tokens.tokenize_str(" ".join(closers)))
        for _ in range(max_tokens):
            if self.state.is_complete:
                return self.text
            assert self.state.error is None, self.state.error
            allowed = self.allowed
            preferred = [i for i in allowed if i in closing or i in EOS_IDS]
            token_id = random.choice(preferred if preferred and random.random() < 0.5 else allowed)
            self.write(token_id)
            if token_id in EOS_IDS:
                return self.text
        raise AssertionError(f"no end after {max_tokens} tokens: {self.text[:200]}")


@pytest.fixture
def open_writer(vocabulary) -> Callable[..., Writer]:
    """Return a maker of writers; options of the language and of the constraint are keyword arguments."""

    def make(kind: str, text: str, **options: object) -> Writer:
        names = Language.__dataclass_fields__
        language = Language(kind, text, **{name: value for name, value in options.items() if name in names})
        constraint = Constraint(language, **{name: value for name, value in options.items() if name not in names})
        return Writer(vocabulary, GrammarState(constraint, CompiledGrammar(language, vocabulary)))

    return make


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(prefix="tt") as name:
        yield Path(name)


@pytest.fixture
async def stack(directory):
    async with Stack(directory) as stack:
        yield stack


@pytest.fixture
async def full_stack(directory, tokenizer_json):
    async with Stack(directory, tokenizer_json) as stack:
        yield stack
