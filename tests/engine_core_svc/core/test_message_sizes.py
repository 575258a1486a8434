"""Messages between engine core and worker stay below their limit for any requests in any number."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tetrad.engine_core_svc.core.message_sizes import MessageLimits
from tetrad.engine_core_svc.core.payload import WorkerPayload
from tetrad.engine_core_svc.core.plan import GrammarMasks, SchedulerOutput
from tetrad.engine_core_svc.core.request import Request, StopRules
from tetrad.engine_core_svc.core.wire import SamplingMessage, sampling_of
from tetrad.engine_core_svc.engine.admission import Admission, AdmissionLimits
from tetrad.engine_core_svc.engine.submission_wire import Submission
from tetrad.engine_core_svc.structured_output.filler import InlineFiller
from tetrad.engine_core_svc.structured_output.grammars import Grammars
from tetrad.engine_core_svc.worker.wire import encode_plan
from tetrad.services.errors import InvalidRequest
from tetrad.services.request_context import NO_CONTEXT
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1.types_pb2 import SamplingParams, TokenIds
from tetrad.v1.worker_pb2 import ExecuteRequest, ExecuteResponse
from tetrad.worker_svc.api.wire import decode_plan, encode_result
from tetrad.worker_svc.core.result import LogprobRows, ModelRunnerOutput, PromptLogprobs, SampledLogprobs

VOCAB_SIZE = 49_152
MESSAGE_BYTES = 32 << 20
SMALL = 1 << 20
"""The smallest limit that a service takes."""


class WideMasks(Grammars):
    """Masks as wide as a large vocabulary's, without grammars behind them."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(InlineFiller())
        self.constrained: set[int] = set()
        self._num_words = (vocab_size + 31) // 32

    def constrain(self, request: Request) -> None:
        self.constrained.add(request.key)
        request.sizes = replace(request.sizes, mask_bytes=4 * (self._num_words + 1))

    def masks(self, plan: SchedulerOutput) -> GrammarMasks | None:
        keys = [key for key in plan.sampling_keys if key in self.constrained]
        return GrammarMasks(keys, bytes(4 * self._num_words * len(keys)), self._num_words) if keys else None


class Engine:
    """A scheduler behind admission, and a worker whose answers are as large as those of a real one."""

    def __init__(self, make_bench, *, max_message_bytes=MESSAGE_BYTES, vocab_size=VOCAB_SIZE, shares_params=True, **limits):
        self.max_message_bytes, self.vocab_size = max_message_bytes, vocab_size
        messages = MessageLimits.of(max_message_bytes)
        self.masks = WideMasks(vocab_size)
        self.bench = make_bench(messages=messages, grammars=self.masks, **limits)
        self.scheduler = self.bench.scheduler
        self.scheduler.shares_params = shares_params
        self.admission = Admission(AdmissionLimits(8192, vocab_size, messages=messages))
        self.encoded: dict[int, SamplingMessage] = {}

    def add(self, params: SamplingParams, *, num_prompt_tokens=4, max_tokens=2, output=(), constrained=False) -> Request:
        number = len(self.scheduler.requests)
        encoded = self.encoded.setdefault(id(params), SamplingMessage(params))
        submission = Submission(
            request_id=f"r{number}", handle=number, output_token_ids=list(output), stop=StopRules(max_tokens=max_tokens),
            prompt_token_ids=[(number * 31 + i * 7) % self.vocab_size for i in range(num_prompt_tokens)], priority=0,
            arrival_time=0.0, timeout_s=None, cache_salt="", constraint=None, resumed=False, context=NO_CONTEXT,
            skip_reading_prefix_cache=params.HasField("prompt_logprobs"), payload=WorkerPayload(encoded, seed=number),
        )  # fmt: skip
        request = self.admission.accept(submission, 0)
        self.scheduler.add_request(request)
        if constrained:
            self.masks.constrain(request)
        return request

    def plan(self) -> SchedulerOutput | None:
        """Make a plan; check that it and its result fit a message."""
        before = {key: request.num_computed_tokens for key, request in self.scheduler.requests.items()}
        plan = self.bench.plan()
        if plan is not None:
            assert self.encode(plan).ByteSize() <= self.max_message_bytes
            assert self._answer(plan, before).ByteSize() <= self.max_message_bytes
        return plan

    def encode(self, plan: SchedulerOutput) -> ExecuteRequest:
        return encode_plan(plan, shares_params=self.scheduler.shares_params)

    def run(self, *, depth=2, losses: Iterable[int] = ()) -> int:
        """Step until all have ended; the worker is lost before each of the steps in `losses`. Return the steps it took."""
        lost_at, num_steps = set(losses), 0
        while num_steps < 5000:
            if num_steps in lost_at:
                self.scheduler.forget_worker()
                self.bench.in_flight.clear()
                self.bench.worker_lengths.clear()
            num_steps += 1
            while len(self.bench.in_flight) < depth and self.plan() is not None:
                pass
            if not self.bench.in_flight:
                break
            self.bench.deliver()
        assert not self.scheduler.has_requests
        return num_steps

    def _answer(self, plan: SchedulerOutput, before: dict[int, int]) -> ExecuteResponse:
        """Return what a worker would answer: rows of sampled tokens, and prompts whose last token is computed."""
        sampled, prompts = [], []
        for new in plan.new_requests:
            before[new.key] = new.num_computed_tokens
        for key, num_tokens in plan.num_scheduled_tokens().items():
            request = self.scheduler.requests[key]
            params = sampling_of(request.payload.params)
            if params.HasField("logprobs") and key in plan.sampling_keys:
                sampled.append(SampledLogprobs(np.array([key], np.uint32), self._rows(1, params.logprobs)))
            last = request.num_prompt_tokens - 1
            if params.HasField("prompt_logprobs") and before[key] <= last < before[key] + num_tokens:
                prompts.append(PromptLogprobs(key, 1, self._rows(last, params.prompt_logprobs)))
        handles = np.array(plan.sampling_keys, np.uint32)
        return ExecuteResponse(output=encode_result(ModelRunnerOutput(plan.step_id, handles, handles, sampled, prompts)))

    def _rows(self, num_positions: int, num_top: int) -> LogprobRows:
        shape = num_positions, 1 + (self.vocab_size if num_top == -1 else num_top)
        return LogprobRows(np.zeros(shape, np.uint32), np.zeros(shape, np.float32), np.zeros(num_positions, np.uint32))


@pytest.fixture
def make_engine(make_bench):
    return lambda **options: Engine(make_bench, **options)


def biased(seed: int, num_ids: int = VOCAB_SIZE) -> SamplingParams:
    return SamplingParams(logit_bias={token_id: float((token_id + seed) % 13) for token_id in range(num_ids)})


def test_72_requests_with_a_bias_on_every_token_run_and_are_resumed_in_several_plans(make_engine):
    engine = make_engine()
    params = [biased(number) for number in range(72)]
    assert sum(each.ByteSize() for each in params) > MESSAGE_BYTES

    for each in params:
        engine.add(each, max_tokens=40)

    assert engine.run(losses=[25]) > 40


def test_a_light_request_does_not_wait_for_heavy_ones_before_it(make_engine):
    engine = make_engine()
    for number in range(10):
        engine.add(biased(number))
    light = engine.add(SamplingParams())

    plan = engine.plan()

    assert light.key in plan.num_scheduled_tokens()
    assert len(plan.new_requests) < 10


def test_parameters_that_requests_share_are_in_a_plan_once(make_engine):
    engine = make_engine()
    params = biased(1)
    requests = [engine.add(params) for _ in range(128)]
    own = engine.add(SamplingParams(top_k=5))

    step = engine.encode(engine.plan()).step

    assert [each.sampling_params_index for each in step.new_requests if each.HasField("sampling_params_index")] == [0] * 128
    assert list(step.shared_sampling_params) == [params]
    assert step.ByteSize() < 2 * params.ByteSize()
    read = {new.handle: new.sampling for new in decode_plan(step).new_requests}
    assert {request.key: read[request.key].seed for request in requests} == {
        request.key: request.payload.seed for request in requests
    }
    assert all(read[request.key].logit_bias == dict(params.logit_bias) for request in requests)
    assert read[own.key].top_k == 5


def test_a_worker_of_an_older_release_gets_each_request_with_its_own_parameters_and_seed(make_engine):
    engine = make_engine(shares_params=False)
    params = biased(1)
    for _ in range(128):
        engine.add(params, max_tokens=100)

    step = engine.encode(engine.plan()).step

    assert not step.shared_sampling_params
    assert [new.sampling_params.seed for new in step.new_requests] == list(range(len(step.new_requests)))
    assert not any(new.HasField("seed") or new.HasField("sampling_params_index") for new in step.new_requests)
    assert not params.HasField("seed")


def test_128_requests_for_all_logprobs_take_turns_and_others_are_in_every_step(make_engine):
    engine = make_engine()
    for _ in range(128):
        engine.add(SamplingParams(logprobs=-1), max_tokens=1)
    other = engine.add(SamplingParams(logprobs=5), max_tokens=50)

    while not other.is_finished:
        plan = engine.plan()
        engine.bench.deliver()

        assert other.key in plan.num_scheduled_tokens()
        assert len(plan.sampling_keys) <= 2


def test_constrained_requests_whose_masks_fit_no_message_together_take_turns(make_engine):
    engine = make_engine(max_message_bytes=SMALL)
    assert 256 * VOCAB_SIZE // 8 > SMALL
    for _ in range(256):
        engine.add(SamplingParams(), num_prompt_tokens=2, constrained=True)

    assert 0 < len(engine.plan().sampling_keys) < 256
    engine.run()


def test_a_prompt_that_wants_all_logprobs_is_computed_position_by_position(make_engine):
    engine = make_engine()
    request = engine.add(SamplingParams(prompt_logprobs=-1), num_prompt_tokens=20)

    plan = engine.plan()

    assert plan.num_scheduled_tokens() == {request.key: 1}
    engine.run()


@pytest.mark.parametrize(
    ("params", "options", "field", "num_bytes"),
    [
        ({"prompt_logprobs": -1}, {"num_prompt_tokens": 300}, "prompt_logprobs", 117_576_368),
        ({"prompt_logprobs": 20}, {"num_prompt_tokens": 8000, "max_message_bytes": SMALL}, "prompt_logprobs", 1_407_824),
        ({"logprobs": -1}, {"max_message_bytes": SMALL}, "logprobs", 393_232),
        ({"logit_bias": dict.fromkeys(range(VOCAB_SIZE), 1.0)}, {"max_message_bytes": SMALL}, "sampling_params", None),
        ({"bad_words_token_ids": [TokenIds(ids=bytes(13 << 20))]}, {}, "sampling_params", None),
    ],
    ids=["prompt_logprobs", "many positions", "logprobs", "logit_bias", "bad_words"],
)
def test_what_fits_no_message_is_refused_with_its_size_and_the_limit(make_engine, params, options, field, num_bytes):
    engine = make_engine(max_message_bytes=options.pop("max_message_bytes", MESSAGE_BYTES))

    with pytest.raises(InvalidRequest, match=r"would take \d+ bytes of a message .* the limit is \d+\.") as refusal:
        engine.add(SamplingParams(**params), **options)

    assert (refusal.value.field, refusal.value.reason) == (field, "MESSAGE_TOO_LARGE")
    assert num_bytes is None or f" {num_bytes} bytes" in refusal.value.message
    assert not engine.scheduler.has_requests


def test_20_logprobs_of_each_token_of_a_long_prompt_fit(make_engine):
    """131,072 tokens with the 20 that a frontend allows by default."""
    limits = MessageLimits.of(MESSAGE_BYTES)

    assert limits.prompt_logprob_bytes >= 131_071 * (2 * 21 + 2) * 4


SIZES = st.sampled_from([0, 1, 3, 500, 3_000])
TOPS = st.sampled_from([None, None, 0, 20, 2_000, -1])
ASKED = st.fixed_dictionaries(
    {
        "bias": SIZES,
        "allowed": SIZES,
        "bad_words": st.sampled_from([(0, 0), (1, 20_000), (3_000, 2), (60, 300)]),
        "logprobs": TOPS,
        "prompt_logprobs": TOPS,
        "prompt": st.sampled_from([1, 2, 17, 40, 900]),
        "max_tokens": st.integers(1, 6),
        "output": st.sampled_from([0, 0, 3]),
        "constrained": st.booleans(),
        "n": st.sampled_from([1, 1, 5, 60]),
    }
)


@given(
    asked=st.lists(ASKED, min_size=1, max_size=8),
    depth=st.integers(1, 3),
    losses=st.sets(st.integers(1, 30), max_size=2),
    shares_params=st.booleans(),
    num_blocks=st.sampled_from([70, 2_000]),
)
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
def test_no_plan_and_no_result_exceeds_the_limit(make_engine, asked, depth, losses, shares_params, num_blocks):
    """Against the least limit that a service can be given, which a few requests at their own limits fill."""
    engine = make_engine(max_message_bytes=SMALL, vocab_size=12_000, shares_params=shares_params, num_blocks=num_blocks)
    for each in asked:
        num_words, num_ids = each["bad_words"]
        params = SamplingParams(
            logit_bias=dict.fromkeys(range(each["bias"]), 1.0),
            allowed_token_ids=range(each["allowed"]),
            bad_words_token_ids=[TokenIds(ids=pack_u32([7] * num_ids))] * num_words,
            logprobs=each["logprobs"],
            prompt_logprobs=each["prompt_logprobs"],
        )
        for _ in range(each["n"]):
            try:
                engine.add(
                    params,
                    num_prompt_tokens=each["prompt"],
                    max_tokens=each["max_tokens"] + each["output"],
                    output=[7] * each["output"],
                    constrained=each["constrained"],
                )
            except InvalidRequest as error:
                assert error.reason == "MESSAGE_TOO_LARGE"
                break

    engine.run(depth=depth, losses=losses)
