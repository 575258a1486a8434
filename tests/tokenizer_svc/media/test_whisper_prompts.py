"""Prompts of Whisper: the audio has no place in them, and its features are those of transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from tests.sounds import encoded, samples, sound
from tests.tokenizer_svc.media.conftest import ServeModel, SharedStub
from tests.tokenizer_svc.media.test_audio_prompts import item
from tests.tokenizer_svc.media.test_hostile_images import error_of
from tests.tokenizer_svc.media.test_parity import arrays
from tests.whisper_files import END, NO_TIMES, START, save_whisper, whisper_tokenizer
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import tokenizer_pb2

SECONDS = 2
START_ID, NO_TIMES_ID, END_ID = (whisper_tokenizer().token_to_id(each) for each in (START, NO_TIMES, END))
STARTS = f"{START}<|en|><|transcribe|>{NO_TIMES}"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whisper")
    save_whisper(directory, num_seconds=SECONDS)
    return directory


@pytest.fixture
async def stub(whisper: Path, shared_stub: SharedStub) -> Any:
    return await shared_stub("whisper", whisper)


async def encode(stub: Any, *media: tokenizer_pb2.MediaItem, **fields: Any) -> tokenizer_pb2.Encoding:
    [encoding] = (await stub.Encode(tokenizer_pb2.EncodeRequest(media=media, **fields))).encodings
    return encoding


async def test_the_service_describes_its_audio(stub: Any) -> None:
    [modality] = (await stub.GetInfo(tokenizer_pb2.GetInfoRequest())).modalities

    assert (modality.modality, modality.max_items, modality.max_embeds_per_item) == ("audio", 1, 50 * SECONDS)


@pytest.mark.parametrize("seconds", [0.4, SECONDS, 3.1])
async def test_features_equal_transformers(whisper: Path, stub: Any, seconds: float) -> None:
    heard = samples(seconds)
    theirs = WhisperFeatureExtractor.from_pretrained(whisper)(heard, sampling_rate=16_000, return_tensors="np")

    [feature] = (await encode(stub, item(encoded(heard, codec="pcm_f32le")), texts=[STARTS])).mm_features

    assert (feature.offset, feature.length, feature.num_embeds, feature.is_embed) == (0, 0, 50 * SECONDS, b"")
    assert [*arrays(feature)] == ["input_features"]
    np.testing.assert_allclose(arrays(feature)["input_features"], theirs.input_features[0], atol=1e-4)


@pytest.mark.parametrize("add_special_tokens", [False, True])
async def test_a_text_has_no_special_tokens_but_its_own(stub: Any, add_special_tokens: bool) -> None:
    """The tokenizer would write an end of text behind it."""
    encoding = await encode(stub, item(sound(1)), texts=[f"{STARTS}hi"], add_special_tokens=add_special_tokens)

    ids = unpack_u32(encoding.token_ids)
    assert (ids[0], ids[3], ids.count(END_ID), len(ids)) == (START_ID, NO_TIMES_ID, 0, 6)


async def test_a_prompt_begins_with_the_start_token(stub: Any) -> None:
    empty, text = [await encode(stub, item(sound(1)), texts=[text]) for text in ("", "hi")]
    ids = await encode(stub, item(sound(1)), token_ids=pack_u32([7, 8]))
    earlier = await encode(stub, item(sound(1)), texts=[f"<|startofprev|> hi{START}"])

    assert unpack_u32(empty.token_ids) == [START_ID]
    assert unpack_u32(text.token_ids)[0] == START_ID
    assert unpack_u32(ids.token_ids) == [START_ID, 7, 8]
    assert unpack_u32(earlier.token_ids).count(START_ID) == 1


@pytest.mark.parametrize("side", [tokenizer_pb2.TRUNCATION_SIDE_LEFT, tokenizer_pb2.TRUNCATION_SIDE_RIGHT])
async def test_truncation_keeps_the_start_token(stub: Any, side: int) -> None:
    encoding = await encode(stub, item(sound(1)), texts=["abcdef"], max_tokens=3, truncation_side=side)

    assert len(ids := unpack_u32(encoding.token_ids)) == 3
    assert ids[0] == START_ID
    assert (encoding.mm_features[0].offset, encoding.mm_features[0].length) == (0, 0)


async def test_other_audio_has_another_identifier(stub: Any) -> None:
    first, second, third = [await encode(stub, item(sound(1, seed)), texts=[STARTS]) for seed in (1, 2, 1)]

    assert first == third
    assert first.mm_features[0].identifier != second.mm_features[0].identifier


async def test_a_prompt_has_one_audio(stub: Any) -> None:
    request = tokenizer_pb2.EncodeRequest(texts=[STARTS], media=[item(sound(1)), item(sound(1))])

    assert "At most 1 audio(s) may be provided in one prompt" in (await error_of(stub.Encode(request))).message


@pytest.fixture
def contradicting(whisper: Path, tmp_path: Path) -> Path:
    """Return a model whose feature extractor makes more than its encoder reads."""
    directory = tmp_path / "model"
    shutil.copytree(whisper, directory)
    file = directory / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chunk_length": 30}))
    return directory


async def test_audio_is_refused_if_the_files_disagree(contradicting: Path, serve_model: ServeModel) -> None:

    async with serve_model(contradicting) as stub:
        refused = await error_of(stub.Encode(tokenizer_pb2.EncodeRequest(texts=[STARTS], media=[item(sound(1))])))

    assert "makes 80 bands of 3000 frames; the model of config.json reads 80 of 200" in refused.message
