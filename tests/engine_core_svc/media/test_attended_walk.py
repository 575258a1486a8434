"""Invariants of requests that attend to an encoder's output, after any interleaving; see test_media_walk.py."""

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tests.engine_core_svc.kv_cache.worker_memory import WorkerMemory
from tests.engine_core_svc.media.attended import AttendedEncoder, attended_media, clip
from tests.engine_core_svc.media.test_media_walk import POISON, MediaWalk
from tests.engine_core_svc.scheduler.test_random_walk import BLOCK_SIZE, MAX_LEN, SHARE
from tetrad.engine_core_svc.core.request import RequestStatus

NAMES = "abcd"


class AttendedMemory(WorkerMemory):
    """The memory of a worker: the keys of all tokens of a prompt depend on the item."""

    def run(self, plan, sampled, *, failing=()):
        return super().run(replace(plan, new_requests=list(map(self._attending, plan.new_requests))), sampled, failing=failing)

    @staticmethod
    def _attending(new):
        names = tuple(span.identifier for span in new.payload.media)
        prompt = [(names, token) if names else token for token in new.token_ids[: new.num_prompt_tokens]]
        return replace(new, token_ids=prompt + new.token_ids[new.num_prompt_tokens :])


class AttendedWalk(MediaWalk):
    """The walk with one item in some prompts, or with the same prompt for several items."""

    add_images = add_poisonous_image = None

    def _new_memory(self):
        super()._new_memory()
        self.encoder = AttendedEncoder(self.bench.scheduler)
        return AttendedMemory(BLOCK_SIZE, super(MediaWalk, self)._new_memory().groups)

    @rule(
        name=st.sampled_from(NAMES),
        size=st.integers(1, 14),
        max_tokens=st.integers(1, 9),
        priority=st.integers(0, 2),
        call=st.integers(0, 2),
        num_sequences=st.integers(1, 2),
    )
    def add_clip(self, name, size, max_tokens, priority, call, num_sequences):
        fields = {"max_tokens": max_tokens, "priority": priority, "call": call, "max_model_len": MAX_LEN}
        prompt = list(range(500, 500 + size))
        self.requests += [self.bench.add(prompt, media=[clip(name)], **fields) for _ in range(num_sequences)]

    @rule(size=st.integers(1, 14))
    @precondition(lambda self: len(self.poisonous) < 3)
    def add_poisonous_clip(self, size):
        media = [clip(f"{POISON} {len(self.requests)}")]
        self.requests.append(self.bench.add(list(range(500, 500 + size)), media=media, max_model_len=MAX_LEN))
        self.poisonous.add(self.requests[-1])

    @invariant()
    def references_are_those_of_running_requests(self):
        scheduler = self.bench.scheduler
        users = {(entry.identifier, key) for entry in scheduler.media.cache for key in entry.users}
        running = [request for request in scheduler.requests.values() if request.status is RequestStatus.RUNNING]
        assert users == {(span.identifier, request.key) for request in running for span in request.payload.media}


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@pytest.mark.parametrize(("num_items", "splits_prompts", "num_walks"), [(1, True, 60), (2, True, 40), (8, False, 30)])
def test_random_walks_with_attended_items_lose_nothing(make_bench, compiled, vocabulary, num_items, splits_prompts, num_walks):
    def make(max_num_batched_tokens=64, **fields):
        step = max_num_batched_tokens if splits_prompts else 64
        media = attended_media(num_items, max_step_tokens=step, splits_prompts=splits_prompts)
        return make_bench(media=media, max_num_batched_tokens=step, enable_chunked_prefill=splits_prompts, **fields)

    given = {"make_bench": staticmethod(make), "letters": compiled("regex", "[a-e]{4}"), "vocabulary": vocabulary}
    run_state_machine_as_test(
        type("GivenWalk", (AttendedWalk,), given),
        settings=settings(
            max_examples=math.ceil(num_walks * SHARE), stateful_step_count=60, suppress_health_check=list(HealthCheck)
        ),
    )
