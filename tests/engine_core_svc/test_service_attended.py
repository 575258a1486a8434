"""Requests to a model with an encoder and a decoder, through a whole engine core on real gRPC."""

import pytest

from tests.engine_core_svc.fake_worker import expected
from tests.engine_core_svc.media_values import feature
from tests.engine_core_svc.service_fakes import Stack
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import types_pb2

AUDIO = [types_pb2.ModalityInfo(modality="audio", max_embeds_per_item=500)]


@pytest.fixture
async def speech_stack(directory):
    stack = Stack(directory)
    stack.worker.encoder.modalities, stack.worker.encoder.is_attended = AUDIO, True
    async with stack:
        yield stack


def audio(name, **fields):
    return feature(name, 0, 0, modality="audio", num_embeds=500, **fields)


async def test_a_request_runs_when_its_audio_is_encoded(speech_stack):
    client = await speech_stack.client()

    client.add(9, [9], mm_features=[audio("a")])
    client.add(8, [8], mm_features=[audio("a", tensors=False)])
    await client.until_finished(8, 9)

    assert (client.tokens[8], client.tokens[9]) == (expected(8, 4), expected(9, 4))
    assert speech_stack.worker.encoder.seen == ["a"]


async def test_the_audio_is_encoded_again_after_the_loss_of_the_worker(speech_stack):
    client, worker = await speech_stack.client(), speech_stack.worker
    client.add(9, [9], max_tokens=6, mm_features=[audio("a")])
    await client.read()

    worker.cut.set()
    await client.until_finished(9)

    assert client.tokens[9] == expected(9, 6)
    assert worker.encoder.seen == ["a", "a"]


async def test_a_request_without_audio_is_refused(speech_stack):
    client = await speech_stack.client()

    client.add(9, [9])
    await client.read()

    error = client.rejected["r9"]
    assert isinstance(error, InvalidRequest)
    assert error.message == "fake has an encoder and a decoder: a prompt needs exactly 1 audio, and this one has 0."


async def test_an_engine_core_describes_the_model(speech_stack):
    """Of 64 KiB, audio that takes 4000 bytes and blocks of 4 KiB share."""
    client = await speech_stack.client()

    assert (client.ready.is_encoder_decoder, client.ready.supports_transcription) == (True, True)
    assert client.ready.encoder_cache_size % 500 == 0
    assert 500 <= client.ready.encoder_cache_size <= 500 * client.ready.max_num_seqs
    assert speech_stack.worker.encoder.size == client.ready.encoder_cache_size
    assert speech_stack.worker.memory_request.max_num_encoder_tokens == 500


async def test_other_models_have_no_encoder(stack):
    client = await stack.client()

    assert (client.ready.is_encoder_decoder, client.ready.supports_transcription) == (False, False)


async def test_times_of_tokens_need_a_worker_that_finds_them(speech_stack):
    client = await speech_stack.client()
    asked = types_pb2.PromptScoreIds(token_ids=pack_u32([0]), width=1, num_positions=5)
    params = types_pb2.SamplingParams(max_tokens=1, prompt_score_ids=asked)

    client.add(9, [9, 8, 7], mm_features=[audio("a")], sampling_params=params)
    await client.read()

    assert isinstance(client.rejected["r9"], Unsupported)
