"""Requests with images, through a whole engine core on real gRPC."""

import asyncio

import pytest

from tests.engine_core_svc.fake_worker import MAX_LEN, expected
from tests.engine_core_svc.media_values import IMAGES, feature, prompt_with
from tests.engine_core_svc.service_fakes import Stack
from tetrad.services.errors import InvalidRequest, ModelError, Overloaded, Unavailable
from tetrad.services.rpc.status import from_status
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import types_pb2, worker_pb2


@pytest.fixture
async def media_stack(directory):
    stack = Stack(directory)
    stack.worker.encoder.modalities = IMAGES
    async with stack:
        yield stack


async def test_an_image_is_encoded_before_its_tokens_are_planned(media_stack):
    client, image = await media_stack.client(), feature("a", 2, 20)

    client.add(9, prompt_with(9, image), mm_features=[image])
    await client.until_finished(9)

    assert client.tokens[9] == expected(9, 4)
    assert media_stack.worker.encoder.seen == ["a"]
    (item,) = media_stack.worker.encoder.messages[0].items
    assert (item.identifier, item.modality, item.num_embeds) == ("a", "image", 20)
    assert item.tensors["pixel_values"] == image.tensors["pixel_values"]
    assert item.tensors.keys() == {"pixel_values", "sizes"}
    described = media_stack.worker.seen[0].new_requests[0].mm_features[0]
    image.ClearField("tensors")
    assert described == image


async def test_an_image_for_a_text_model_is_refused(stack):
    client, image = await stack.client(), feature("a", 0, 3)

    client.add(9, prompt_with(9, image), mm_features=[image])
    await client.read()

    error = client.rejected["r9"]
    assert isinstance(error, InvalidRequest)
    assert (error.message, error.field) == ("fake is not a multimodal model.", "mm_features")


async def test_other_requests_run_while_an_image_is_encoded(media_stack):
    client, image, encoder = await media_stack.client(), feature("a", 2, 20), media_stack.worker.encoder
    encoder.go.clear()
    client.add(9, prompt_with(9, image), mm_features=[image])
    await encoder.until_asked()

    client.add(30, [30])
    await client.until_finished(30)
    load = await media_stack.load()
    encoder.go.set()
    await client.until_finished(9)

    assert (client.tokens[30], client.tokens[9]) == (expected(30, 4), expected(9, 4))
    assert (load.stats.mm_cache_queries, load.stats.mm_cache_hits) == (1, 0)
    assert load.stats.encoder_cache_usage == pytest.approx(20 / 2048)


async def test_sequences_of_one_prompt_share_an_image_and_its_bytes(media_stack):
    client, image = await media_stack.client(), feature("a", 2, 20)
    bare = feature("a", 2, 20, tensors=False)

    client.add(9, prompt_with(9, image), mm_features=[image], call_number=1)
    client.add(8, prompt_with(8, image), mm_features=[bare], call_number=1)
    await client.until_finished(8, 9)

    assert (client.tokens[8], client.tokens[9]) == (expected(8, 4), expected(9, 4))
    assert media_stack.worker.encoder.seen == ["a"]


async def test_an_image_that_is_not_there_is_sent_again(media_stack):
    client, bare = await media_stack.client(), feature("a", 2, 20, tensors=False)

    client.add(9, prompt_with(9, bare), mm_features=[bare])
    await client.read()

    assert isinstance(client.rejected["r9"], Unavailable)
    assert client.rejected["r9"].reason == "MM_CACHE_MISS"


async def test_an_image_that_cannot_be_encoded_fails_its_request_alone(media_stack):
    client, image, other = await media_stack.client(), feature("a", 0, 20), feature("b", 3, 20)
    media_stack.worker.encoder.refused["a"] = ModelError("It has no pixels.")

    client.add(9, prompt_with(9, image), mm_features=[image])
    client.add(8, prompt_with(8, other), mm_features=[other])
    await client.until_finished(8, 9)

    assert client.finished[9].finish_reason == types_pb2.FINISH_REASON_ERROR
    assert from_status(client.finished[9].status).message == "It has no pixels."
    assert client.tokens[8] == expected(8, 4)
    assert (await media_stack.until_idle()).stats.num_running_reqs == 0


async def test_an_image_is_encoded_again_after_the_loss_of_the_worker(media_stack):
    client, image, worker = await media_stack.client(), feature("a", 2, 20), media_stack.worker
    client.add(9, prompt_with(9, image), max_tokens=6, mm_features=[image])
    await client.read()

    worker.cut.set()
    await client.until_finished(9)

    assert client.tokens[9] == expected(9, 6)
    assert worker.encoder.seen == ["a", "a"]


async def test_an_image_that_kills_workers_fails_its_request_alone(media_stack):
    client, encoder = await media_stack.client(), media_stack.worker.encoder
    encoder.deadly = {"bad"}
    bad, good = feature("bad", 0, 20), feature("good", 2, 20)

    client.add(9, prompt_with(9, bad), mm_features=[bad])
    client.add(8, prompt_with(8, good), mm_features=[good], max_tokens=40)
    await client.until_finished(8, 9)

    assert from_status(client.finished[9].status).reason == "POISONOUS_REQUEST"
    assert encoder.num_deaths == 3
    assert client.tokens[8] == expected(8, 40)


async def test_answers_for_items_that_were_not_asked_for_are_a_loss_of_the_worker(media_stack):
    client, image = await media_stack.client(), feature("a", 2, 20)
    media_stack.worker.encoder.answers = [worker_pb2.EncoderEvents(encoded=["other"])]

    client.add(9, prompt_with(9, image), mm_features=[image])
    await client.until_finished(9)

    assert client.notices == ["WORKER_LOST", "RECOVERED"]
    assert client.tokens[9] == expected(9, 4)


async def test_media_of_too_many_bytes_wait_for_others_to_end(directory):
    stack = Stack(directory, max_total_media_bytes=300)
    stack.worker.encoder.modalities = IMAGES
    async with stack:
        client, encoder = await stack.client(), stack.worker.encoder
        encoder.go.clear()
        image, other = feature("a", 2, 20, pixels=bytes(100)), feature("b", 2, 20, pixels=bytes(100))
        client.add(9, prompt_with(9, image), mm_features=[image])
        client.add(8, prompt_with(8, other), mm_features=[other])
        await client.read()
        assert isinstance(client.rejected["r8"], Overloaded)
        encoder.go.set()
        await client.until_finished(9)

        client.add(8, prompt_with(8, other), mm_features=[other])
        await client.until_finished(8)

    assert client.tokens[8] == expected(8, 4)


async def test_an_engine_core_describes_its_media(media_stack):
    client = await media_stack.client()

    assert list(client.ready.modalities) == IMAGES
    assert (client.ready.encoder_cache_size, client.ready.max_media_bytes) == (2048, 1 << 30)
    assert types_pb2.CAPABILITY_MULTIMODAL in client.ready.capabilities
    worker = media_stack.worker
    assert (worker.encoder.size, worker.memory_request.max_num_encoder_tokens) == (2048, 64)
    assert worker.memory_request.max_num_encoder_tokens < MAX_LEN


async def test_an_engine_core_of_a_text_model_describes_none(stack):
    client = await stack.client()

    assert (list(client.ready.modalities), client.ready.encoder_cache_size, client.ready.max_media_bytes) == ([], 0, 0)
    assert types_pb2.CAPABILITY_MULTIMODAL not in client.ready.capabilities
    assert stack.worker.memory_request.max_num_encoder_tokens == 0


async def test_cached_blocks_are_reported_with_the_images_in_them(media_stack):
    client, image, other = await media_stack.client(), feature("a", 20, 4), feature("b", 30, 8)
    call = media_stack.admin.SubscribeKvEvents(pb.SubscribeKvEventsRequest())
    assert (await call.read()).snapshot

    client.add(9, prompt_with(9, image, other, size=50), mm_features=[image, other])
    await client.until_finished(9)
    stored = []
    async with asyncio.timeout(20):
        while len(stored) < 2:
            stored += [list(event.stored.extra_keys) for event in (await call.read()).events]
    call.cancel()

    assert stored == [[], [b"a\0b\0", b"b\0"]]  # the first block is computed while the images are encoded


async def test_a_worker_that_takes_other_media_than_the_one_before_is_awaited(media_stack):
    client, image, worker = await media_stack.client(), feature("a", 2, 20), media_stack.worker
    client.add(9, prompt_with(9, image), max_tokens=6, mm_features=[image])
    await client.read()

    worker.encoder.modalities = []
    worker.cut.set()
    while "WORKER_LOST" not in client.notices:
        await client.read()
    await media_stack.until_load(lambda load: "takes other media (none) than" in load.problem)
    worker.encoder.modalities = IMAGES
    await client.until_finished(9)

    assert client.tokens[9] == expected(9, 6)


async def test_a_worker_that_does_not_encode_is_lost(directory):
    stack = Stack(directory, step_timeout_s=0.5)
    stack.worker.encoder.modalities = IMAGES
    async with stack:
        client, image, encoder = await stack.client(), feature("a", 2, 20), stack.worker.encoder
        encoder.go.clear()
        client.add(9, prompt_with(9, image), mm_features=[image])
        while "WORKER_LOST" not in client.notices:
            await client.read()
        encoder.go.set()
        await client.until_finished(9)

    assert "No media item has come back for 0.5 s" in client.notice_texts[0]
    assert client.tokens[9] == expected(9, 4)


async def test_an_image_is_encoded_again_after_a_sleep(media_stack):
    client, image, encoder = await media_stack.client(), feature("a", 2, 20), media_stack.worker.encoder
    client.add(9, prompt_with(9, image), mm_features=[image])
    await client.until_finished(9)

    await media_stack.admin.Sleep(pb.EngineCoreAdminServiceSleepRequest(level=1))
    await media_stack.admin.WakeUp(pb.EngineCoreAdminServiceWakeUpRequest())
    client.add(8, prompt_with(8, image), mm_features=[image])
    await client.until_finished(8)

    assert client.tokens[8] == expected(8, 4)
    assert encoder.seen == ["a", "a"]
