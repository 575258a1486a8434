"""Prompts with audio: ids, spans and features equal those of transformers' processors; other requests are refused."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from tests.audio_files import AUDIO_KINDS, save_audio_model
from tests.audio_reference import AudioReference, features_of
from tests.sounds import Samples, encoded, samples, sound
from tests.tokenizer_svc.media.conftest import ModelDirectory, ServeModel, SharedStub
from tests.tokenizer_svc.media.test_hostile_images import error_of
from tests.tokenizer_svc.media.test_parity import arrays
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import tokenizer_pb2

SHORT, LONG, TINY = samples(1.3), samples(3.4, seed=1), samples(0.35, seed=2)


def item(data: bytes, **fields: str) -> tokenizer_pb2.MediaItem:
    return tokenizer_pb2.MediaItem(modality="audio", data=data, **fields)


def chat(parts: Sequence[str | Samples], **fields: Any) -> tokenizer_pb2.RenderChatRequest:
    """Return a conversation of one message with these texts and audios."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "audio"} for part in parts]
    return tokenizer_pb2.RenderChatRequest(
        messages_json=json.dumps([{"role": "user", "content": content}]).encode(),
        media=[item(encoded(part, codec="pcm_f32le")) for part in parts if not isinstance(part, str)],
        **fields,
    )


@pytest.fixture(scope="module")
def audio_directory(tmp_path_factory: pytest.TempPathFactory) -> ModelDirectory:
    """Returns the directory of a kind of model that reads audio, written once."""

    @functools.cache
    def write(kind: str) -> Path:
        directory = tmp_path_factory.mktemp("audio")
        save_audio_model(directory, kind)
        return directory

    return write


@pytest.mark.parametrize("kind", AUDIO_KINDS)
async def test_prompts_equal_transformers(kind: str, shared_stub: SharedStub, audio_directory: ModelDirectory) -> None:
    directory = audio_directory(kind)
    reference, token_id = AudioReference(directory), AutoConfig.from_pretrained(directory).audio_token_id
    stub = await shared_stub(kind, directory)
    [modality] = (await stub.GetInfo(tokenizer_pb2.GetInfoRequest())).modalities
    assert modality.modality == "audio"
    for parts in ([SHORT], ["before\n", LONG, "\nafter ", TINY, "."]):
        answer = await stub.RenderChat(chat(parts))
        prepared = reference.prepare(parts)

        token_ids = unpack_u32(answer.token_ids)
        assert token_ids == prepared.token_ids
        assert [feature.num_embeds for feature in answer.mm_features] == list(prepared.num_embeds)
        places = [place for feature in answer.mm_features for place in range(feature.offset, feature.offset + feature.length)]
        assert places == [place for place, each in enumerate(token_ids) if each == token_id]
        for index, feature in enumerate(answer.mm_features):
            assert feature.num_embeds <= modality.max_embeds_per_item
            theirs = features_of(prepared, index, kind)
            for name, value in arrays(feature).items():
                np.testing.assert_allclose(value, theirs.pop(name), rtol=0, atol=1e-4)
            assert not theirs


async def test_a_text_and_ids_have_the_same_features(shared_stub: SharedStub, audio_directory: ModelDirectory) -> None:
    media = [item(sound(1)), item(sound(0.5, form="mp3"))]
    stub = await shared_stub("qwen2_audio", audio_directory("qwen2_audio"))
    text = "A <|AUDIO|> B <|AUDIO|>."
    plain = unpack_u32((await stub.Encode(tokenizer_pb2.EncodeRequest(texts=[text]))).encodings[0].token_ids)
    [of_text] = (await stub.Encode(tokenizer_pb2.EncodeRequest(texts=[text], media=media))).encodings
    [of_ids] = (
        await stub.Encode(tokenizer_pb2.EncodeRequest(token_ids=np.array(plain, "<u4").tobytes(), media=media))
    ).encodings

    assert of_text == of_ids
    assert of_text.mm_features[0].identifier != of_text.mm_features[1].identifier


async def test_audio_that_was_seen_is_named_by_its_uuid(shared_stub: SharedStub, audio_directory: ModelDirectory) -> None:
    request = tokenizer_pb2.EncodeRequest(texts=["<|AUDIO|>"], media=[item(sound(1), uuid="song")])
    stub = await shared_stub("qwen2_audio", audio_directory("qwen2_audio"))
    first = await stub.Encode(request)
    request.media[0].data = b""
    second = await stub.Encode(request)
    request.media[0].uuid = "other"
    refused = await error_of(stub.Encode(request))

    assert first == second
    assert refused.message == "Cache miss for audio at index 0 but data is not provided."


async def test_other_requests_are_refused(audio_directory: ModelDirectory, serve_model: ServeModel) -> None:
    async with serve_model(audio_directory("qwen2_audio"), max_audio_seconds=2, max_audios_per_prompt=2) as stub:

        async def refusal(*media: tokenizer_pb2.MediaItem, text: str = "<|AUDIO|>", **fields: Any) -> str:
            request = tokenizer_pb2.EncodeRequest(texts=[text], media=media, **fields)
            message: str = (await error_of(stub.Encode(request))).message
            return message

        assert await refusal(item(b"noise", media_type="audio/mp3")) == (
            "Failed to load audio 0 (audio/mp3): the data is no audio of these formats, or is damaged: WAV, MP3, FLAC, Ogg, "
            "AAC, MP4 (M4A) and WebM (Invalid data found when processing input)."
        )
        assert "longer than 2 s (max_audio_seconds)" in await refusal(item(sound(3)))
        assert "(1 frames) is too short to be represented inside the model" in await refusal(item(sound(0.01)))
        assert "At most 2 audio(s) may be provided in one prompt" in await refusal(*[item(sound(1))] * 3)
        assert "At most 0 image(s) may be provided" in await refusal(tokenizer_pb2.MediaItem(modality="image", data=b"a"))
        assert "Found fewer '<|AUDIO|>' placeholders" in await refusal(item(sound(1)), text="Hi")
        assert "Found more '<|AUDIO|>' placeholders" in await refusal(item(sound(1)), text="<|AUDIO|><|AUDIO|>")
        taken = "mm_processor_kwargs has 'chunk_length'; this model takes none."
        assert await refusal(item(sound(1)), mm_processor_kwargs_json=b'{"chunk_length": 1}') == taken
        cut = "truncate_prompt_tokens=5 would split or drop a(n) audio item"
        assert cut in await refusal(item(sound(1)), max_tokens=5)
