"""Invariants of requests with images after any interleaving, encodings and their failures included.

No plan has a token of an item that is not encoded; the encoder cache never exceeds its size; nothing is left behind; requests
with other images share no block. A worker that dies of an image fails its request alone.
"""

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tests.engine_core_svc.kv_cache.worker_memory import WorkerMemory
from tests.engine_core_svc.media.encoder_model import EncoderModel, image, media_of, prompt_of
from tests.engine_core_svc.scheduler.test_random_walk import BLOCK_SIZE, MAX_LEN, SHARE, Walk
from tetrad.engine_core_svc.core.request import RequestStatus

SIZES = {"a": 1, "b": 3, "c": 5, "d": 6}
POISON = "poison"


class MediaMemory(WorkerMemory):
    """The memory of a worker: the keys of an item's tokens are those of its embeddings."""

    def run(self, plan, sampled, *, failing=()):
        return super().run(replace(plan, new_requests=list(map(self._embedded, plan.new_requests))), sampled, failing=failing)

    @staticmethod
    def _embedded(new):
        tokens = list(new.token_ids)
        for span in new.payload.media:
            tokens[span.offset : span.end] = [(span.identifier, place) for place in range(span.length)]
        return replace(new, token_ids=tokens)


class MediaWalk(Walk):
    """The walk of test_random_walk.py with images in some prompts. A subclass has `make_bench` with media."""

    def _new_memory(self):
        if not hasattr(self, "encoder"):
            deliver = self.bench.deliver
            self.bench.deliver = lambda *args, **fields: (
                self.encoder.run(self.bench.in_flight[0][0]),
                deliver(*args, **fields),
            )[1]
        self.encoder = EncoderModel(self.bench.scheduler)
        return MediaMemory(BLOCK_SIZE, super()._new_memory().groups)

    def _plan(self):
        plan = super()._plan()
        self.encoder.take()
        if plan is not None:
            self.encoder.note_plan(plan)
        return plan

    def _num_under_way(self):
        return super()._num_under_way() + self.bench.scheduler.media.num_encoding

    def _check_order(self, plan):
        """Requests that wait for their images are overtaken."""

    @rule(
        names=st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=3),
        gaps=st.lists(st.integers(0, 5), min_size=4, max_size=4),
        max_tokens=st.integers(1, 9),
        priority=st.integers(0, 2),
        call=st.integers(0, 2),
        num_sequences=st.integers(1, 2),
    )
    def add_images(self, names, gaps, max_tokens, priority, call, num_sequences):
        media, prompt = self._prompt(names, gaps)
        fields = {"max_tokens": max_tokens, "priority": priority, "call": call, "media": media, "max_model_len": MAX_LEN}
        self.requests += [self.bench.add(prompt, **fields) for _ in range(num_sequences)]

    @rule(names=st.lists(st.sampled_from(sorted(SIZES)), max_size=1), gaps=st.lists(st.integers(0, 5), min_size=4, max_size=4))
    @precondition(lambda self: len(self.poisonous) < 3)
    def add_poisonous_image(self, names, gaps):
        media, prompt = self._prompt([*names, f"{POISON} {len(self.requests)}"], gaps)
        self.requests.append(self.bench.add(prompt, media=media, max_model_len=MAX_LEN))
        self.poisonous.add(self.requests[-1])

    @rule()
    @precondition(lambda self: self.encoder.asked)
    def encode(self):
        self._encode()

    @rule()
    @precondition(lambda self: self.encoder.asked)
    def fail_encoding(self):
        identifier = self.encoder.asked[0].identifier
        outputs = self.encoder.fail()
        for output in outputs:
            assert identifier in {span.identifier for span in output.request.payload.media}
            assert output.error is not None
        self._note_ends([output.request for output in outputs])

    def _encode(self):
        if self.encoder.asked[0].identifier.startswith(POISON):
            self._lose_worker(crashed=True)
        else:
            assert not self.encoder.encode()

    def _prompt(self, names, gaps):
        media, end = [], gaps[0]
        for name, gap in zip(names, gaps[1:], strict=False):
            media.append(image(name, end, SIZES.get(name, 2)))
            end = media[-1].end + gap
        return media, prompt_of(500, end + 1, media)

    def _end_transfer(self):
        """Encode an item when nothing else goes on; return whether there was any."""
        if self.encoder.asked:
            self._encode()
            return True
        return False

    @invariant()
    def the_cache_is_what_its_entries_take(self):
        cache = self.bench.scheduler.media.cache
        entries = list(cache)
        assert sum(entry.num_embeds for entry in entries) + sum(cache._leaving.values()) == cache.num_used <= cache.size
        assert sum(not entry.is_ready for entry in entries) == cache.num_encoding
        free = {entry.identifier for entry in entries if entry.is_ready and not entry.users}
        assert free == set(cache._freeable)

    @invariant()
    def references_are_those_of_running_requests(self):
        scheduler = self.bench.scheduler
        for entry in scheduler.media.cache:
            for key in entry.users:
                request = scheduler.requests[key]
                assert request.status is RequestStatus.RUNNING
                ahead = [span.identifier for span in request.payload.media if span.end > request.num_computed_tokens]
                assert entry.identifier in ahead

    @invariant()
    def the_store_has_the_items_of_unfinished_requests(self):
        scheduler = self.bench.scheduler
        held = {span.identifier for request in scheduler.requests.values() for span in request.payload.media}
        assert set(scheduler.media._store._items) == held
        assert scheduler.media.num_bytes == 100 * len(held)

    def teardown(self):
        super().teardown()
        if hasattr(self, "bench"):
            media = self.bench.scheduler.media
            assert (len(media._store), media.num_encoding, media._num_looked_for) == (0, 0, {})
            assert media.stats.hits <= media.stats.queries


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@pytest.mark.parametrize(
    ("cache_size", "splits_prompts", "num_walks"), [(6, True, 60), (11, True, 40), (40, True, 30), (20, False, 30)]
)
def test_random_walks_with_images_lose_nothing(make_bench, compiled, vocabulary, cache_size, splits_prompts, num_walks):
    """With room for one item, for about two, and for all; and with prompts that are computed in one step."""

    def make(max_num_batched_tokens=64, **fields):
        step = max_num_batched_tokens if splits_prompts else 64
        media = media_of(cache_size, max_step_tokens=step, splits_prompts=splits_prompts)
        return make_bench(media=media, max_num_batched_tokens=step, enable_chunked_prefill=splits_prompts, **fields)

    given = {"make_bench": staticmethod(make), "letters": compiled("regex", "[a-e]{4}"), "vocabulary": vocabulary}
    run_state_machine_as_test(
        type("GivenWalk", (MediaWalk,), given),
        settings=settings(
            max_examples=math.ceil(num_walks * SHARE), stateful_step_count=60, suppress_health_check=list(HealthCheck)
        ),
    )
