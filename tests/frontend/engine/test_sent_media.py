"""Images of requests with several outputs: an engine core receives their tensors once; no output is lost or repeated.

The engine core here keeps tensors as the real one does: while an unfinished request has the image.
"""

import asyncio
from types import SimpleNamespace

import pytest

from tests.carriers import OVER_EACH_CARRIER
from tests.frontend.fakes import TEXT, FakeEngine
from tests.frontend.fakes.images import IMAGES, PLACEHOLDER
from tetrad.frontend.engine.client_sequence import NO_PARAMS, ActiveSequence
from tetrad.frontend.engine.sent_media import SentMedia
from tetrad.frontend.engine.wire import without_tensors
from tetrad.frontend.request.prompts import TokensPrompt
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.tokenizer.media_wire import decode_features
from tetrad.services.errors import Overloaded, Unavailable
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import engine_core_pb2, types_pb2

pytestmark = OVER_EACH_CARRIER

LONG = TEXT * 3
NUM_BYTES = 300_000
SMALL_BYTES = 20_000


class StoringEngine(FakeEngine):
    """An engine core that has the tensors of its running requests' images, and rejects requests whose tensors it lacks."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.modalities = IMAGES
        self.reject = self.missing

    def missing(self, request):
        known = {each.identifier for running in self.running.values() for each in running.request.mm_features}
        known |= {each.identifier for each in request.mm_features if each.tensors}
        if all(each.identifier in known for each in request.mm_features):
            return None
        return Unavailable("Multi-modal cache miss", reason="MM_CACHE_MISS")

    @property
    def copies(self):
        """For each request received: the number of its images with tensors."""
        return [sum(bool(each.tensors) for each in request.mm_features) for request in self.requests]


@pytest.fixture
def make_engine():
    return StoringEngine


@pytest.fixture
async def second(sockets, carrier):
    fake = StoringEngine(sockets / "e2")
    fake.carrier = carrier
    await fake.start()
    yield fake
    await fake.kill()


@pytest.fixture
async def pair(connect, engine, second):
    return await connect(engine_targets=(engine.target, second.target))


def prompt_of(*names):
    """A prompt with an image of each name, of four tokens and `NUM_BYTES`."""
    messages = []
    for place, name in enumerate(names):
        pixels = types_pb2.Tensor(dtype=types_pb2.DATA_TYPE_UINT8, shape=[NUM_BYTES], inline=bytes(NUM_BYTES))
        message = types_pb2.MultiModalFeature(modality="image", identifier=name, hash=name, num_embeds=4, length=4)
        message.offset = 2 + 4 * place
        message.tensors["pixel_values"].CopyFrom(pixels)
        messages.append(message)
    ids = [65, 66, *[PLACEHOLDER] * 4 * len(names), 67]
    return TokensPrompt(prompt_token_ids=ids, mm_features=decode_features(messages))


def start(llm, *names, request_id="r", n=8, max_tokens=30, rank=None):
    """Ask for n outputs of a prompt with images, in a task that returns their texts."""

    async def collect():
        params = SamplingParams(n=n, max_tokens=max_tokens, output_kind=RequestOutputKind.DELTA)
        texts = [""] * n
        async for output in llm.generate(prompt_of(*names), params, request_id, data_parallel_rank=rank):
            for choice in output.outputs:
                texts[choice.index] += bytes(choice.token_ids).decode()
        return texts

    return asyncio.create_task(collect())


async def test_outputs_of_a_request_share_one_copy(llm, engine):
    texts = await start(llm, "cat")

    assert texts == [LONG[:30]] * 8
    assert engine.copies == [1, 0, 0, 0, 0, 0, 0, 0]
    assert sum(engine.add_sizes) < NUM_BYTES + SMALL_BYTES
    assert {(each.offset, each.length, each.num_embeds) for request in engine.requests for each in request.mm_features} == {
        (2, 4, 4)
    }


async def test_equal_images_of_a_prompt_share_one_copy(llm, engine):
    await start(llm, "cat", "dog", "cat", n=2)

    assert engine.copies == [2, 0]
    assert [each.offset for each in engine.requests[1].mm_features] == [2, 6, 10]


async def test_requests_rely_on_each_other_only_for_images_that_they_share(llm, engine):
    engine.pause()
    tasks = [start(llm, "cat", n=1, request_id="a")]
    await engine.until(lambda: len(engine.running) == 1)
    tasks.append(start(llm, "dog", "cat", n=1, request_id="b"))
    await engine.until(lambda: len(engine.running) == 2)
    await engine.allow(None)
    await asyncio.gather(*tasks)

    assert engine.copies == [1, 1]
    assert engine.requests[1].mm_features[0].tensors


async def test_requests_after_the_end_of_the_first_bring_tensors_again(llm, engine):
    await start(llm, "cat", n=1)
    await start(llm, "cat", n=1)

    assert engine.copies == [1, 1]


@pytest.mark.parametrize("is_another", [True, False])
async def test_a_lost_session_sends_one_copy_again(llm, engine, is_another):
    engine.pause()
    task = start(llm, "cat")
    await engine.until(lambda: len(engine.running) == 8)
    await engine.take(10)

    await engine.kill()
    engine._epoch -= not is_another
    await engine.start()
    await engine.until(lambda: len(engine.requests) == 16)
    await engine.allow(None)

    assert await task == [LONG[:30]] * 8
    assert engine.copies == [1, 0, 0, 0, 0, 0, 0, 0] * 2
    assert all(len(unpack_u32(request.resumed_output_token_ids)) == 10 for request in engine.requests[8:])


async def test_a_first_request_that_ended_meanwhile_is_no_loss(llm, engine):
    """The engine core has ended the first request; the frontend sends the second before it knows."""
    engine.pause()
    first = start(llm, "cat", n=1, request_id="a")
    await engine.until(lambda: engine.running)
    engine.running.clear()

    others = start(llm, "cat", n=3, request_id="b")
    await engine.until(lambda: len(engine.running) == 3)
    await engine.allow(None)

    assert await others == [LONG[:30]] * 3
    assert engine.copies == [1, 0, 0, 0, 1, 1, 1]
    assert {request.request_id for request in engine.requests[1:4]} == {request.request_id for request in engine.requests[4:]}
    assert not any(request.resumed for request in engine.requests)
    first.cancel()


async def test_outputs_of_one_token(llm, engine):
    assert await start(llm, "cat", max_tokens=1) == [LONG[:1]] * 8
    assert await start(llm, "cat", max_tokens=1) == [LONG[:1]] * 8

    assert sum(engine.copies) == 2


async def test_the_abort_of_the_first_request_leaves_the_others(llm, engine):
    engine.pause()
    first = start(llm, "cat", n=1, request_id="a")
    await engine.until(lambda: len(engine.running) == 1)
    running = start(llm, "cat", n=2, request_id="b")
    await engine.until(lambda: len(engine.running) == 3)

    await llm.abort("a")
    later = start(llm, "cat", n=2, request_id="c")
    await engine.until(lambda: len(engine.running) == 4)
    await engine.allow(None)

    assert await asyncio.gather(first, running, later) == [[""], [LONG[:30]] * 2, [LONG[:30]] * 2]
    assert engine.copies == [1, 0, 0, 1, 0]


async def test_the_rejection_of_the_first_request_is_not_that_of_others(llm, engine):
    full = [Overloaded("full", retry_after_s=1.0)]
    engine.reject = lambda request: full.pop() if full else engine.missing(request)

    first, second = start(llm, "cat", n=1, request_id="a"), start(llm, "cat", n=1, request_id="b")

    assert await second == [LONG[:30]]
    with pytest.raises(Overloaded):
        await first


async def test_a_rejection_of_a_request_with_all_tensors_is_final(llm, engine):
    engine.reject = lambda _: Unavailable("Multi-modal cache miss", reason="MM_CACHE_MISS")

    with pytest.raises(Unavailable, match="Multi-modal cache miss"):
        await start(llm, "cat", n=2)

    assert len(engine.requests) <= 3


async def test_each_engine_core_gets_a_copy(pair, engine, second):
    engine.pause()
    second.pause()
    tasks = [start(pair, "cat", n=4, request_id=f"r{rank}", rank=rank) for rank in (0, 1)]
    await engine.until(lambda: len(engine.running) == 4)
    await second.until(lambda: len(second.running) == 4)
    await engine.allow(None)
    await second.allow(None)

    assert await asyncio.gather(*tasks) == [[LONG[:30]] * 4] * 2
    assert engine.copies == second.copies == [1, 0, 0, 0]


async def test_requests_of_a_lost_engine_core_bring_a_copy_to_the_next(pair, engine, second):
    engine.pause()
    second.pause()
    task = start(pair, "cat")
    arrivals = [asyncio.create_task(each.until(lambda each=each: len(each.running) == 8)) for each in (engine, second)]
    [arrival], waiting = await asyncio.wait(arrivals, return_when=asyncio.FIRST_COMPLETED)
    lost, left = (engine, second) if arrival is arrivals[0] else (second, engine)
    for each in waiting:
        each.cancel()
    await lost.take(10)

    await lost.kill()
    await left.until(lambda: len(left.running) == 8)
    await left.allow(None)

    assert await task == [LONG[:30]] * 8
    assert left.copies == [1, 0, 0, 0, 0, 0, 0, 0]


def active(request_id, *names, is_finished=False):
    sequence = SimpleNamespace(request_id=request_id, output_token_ids=[], finished=is_finished)
    features = prompt_of(*names)["mm_features"]
    bare = tuple(map(without_tensors, features))
    message = engine_core_pb2.EngineCoreRequest(request_id=request_id)
    return ActiveSequence(sequence, None, None, message, b"", NO_PARAMS, 0, features=features, bare_features=bare)


def test_nothing_is_kept_of_requests_that_have_ended(carrier):
    media = SentMedia()
    first, second, aborted = active("a", "cat"), active("b", "cat", "dog"), active("c", "bird", is_finished=True)
    for each in (first, second, aborted):
        media.note_sent(each, media.choose(each))
    assert media.note_miss(second)
    media.note_sent(second, media.choose(second))

    for each in (first, second, aborted):
        media.forget(each)

    assert not any(vars(media).values())


def test_only_the_tensors_of_a_feature_are_omitted(carrier):
    message = types_pb2.MultiModalFeature(modality="video", identifier="i", hash="h", offset=3, length=4, num_embeds=3)
    message.is_embed, message.time_step = b"\1\0\1\1", 2.5
    message.grid.extend([1, 1, 3])
    message.tensors["pixel_values"].inline = bytes(NUM_BYTES)
    [feature] = decode_features([message])

    bare = without_tensors(feature)

    written = {field.name for field, _ in bare.message.ListFields()}
    assert written == {field.name for field, _ in message.ListFields()} - {"tensors"}
    assert all(getattr(bare.message, name) == getattr(message, name) for name in written)
    unread = {"layouts"}
    assert written | {"tensors"} | unread == set(types_pb2.MultiModalFeature.DESCRIPTOR.fields_by_name)
    assert (bare.num_bytes, bare.offset) == (bare.message.ByteSize(), 3)
