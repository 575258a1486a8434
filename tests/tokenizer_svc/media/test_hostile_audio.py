"""Hostile audio: each file ends in one error, within time and memory, and the next request is served."""

import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from tests.audio_files import save_audio_model
from tests.sounds import encoded, sound
from tests.tokenizer_svc.media.conftest import ServeModel
from tests.tokenizer_svc.media.test_audio_prompts import item
from tests.tokenizer_svc.media.test_hostile_images import error_of
from tetrad.v1 import tokenizer_pb2

MODULE = "tetrad.tokenizer_svc.media.audio.audio_process"
RATE = 16_000
_HEADER = ("form", "channels", "rate", "bytes", "block", "bits")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("audio")
    save_audio_model(found, "audioflamingo3")
    return found


def request(data: bytes) -> tokenizer_pb2.EncodeRequest:
    return tokenizer_pb2.EncodeRequest(texts=["<sound>"], media=[item(data)])


@pytest.fixture
def process() -> Callable[[], psutil.Process]:
    """Returns the process that preprocesses audio; there may be those of other tests' services."""

    def processes() -> list[psutil.Process]:
        return [each for each in psutil.Process().children(recursive=True) if MODULE in each.cmdline()]

    def own() -> psutil.Process:
        [found] = [each for each in processes() if each not in others]
        return found

    others = processes()
    return own


def long_silence(seconds: int) -> bytes:
    """Return a small file of much sound."""
    return encoded(np.zeros(seconds * RATE, np.float32), "flac")


def lying(**fields: int) -> bytes:
    """Return a WAV file whose header says something else."""
    data = bytearray(sound(1))
    place = data.index(b"fmt ") + 8
    values = dict(
        zip(("form", "channels", "rate", "bytes", "block", "bits"), struct.unpack_from("<HHIIHH", data, place), strict=True)
    )
    struct.pack_into("<HHIIHH", data, place, *(values | fields).values())
    return bytes(data)


async def test_files_that_unpack_to_much_are_refused_early(
    directory: Path, serve_model: ServeModel, process: Callable[[], psutil.Process]
) -> None:
    bomb = long_silence(1800)
    assert len(bomb) < 1 << 20
    async with serve_model(directory) as stub:
        started = time.monotonic()
        refused = await error_of(stub.Encode(request(bomb)))
        seconds, memory = time.monotonic() - started, process().memory_info().rss
        answer = await stub.Encode(request(sound(1)))

    assert "the audio is longer than 600 s (max_audio_seconds)" in refused.message
    assert seconds < 30
    assert memory < 700 << 20
    assert answer.encodings[0].mm_features


LYING = (
    lying(channels=0),
    lying(channels=65_535),
    lying(rate=0),
    lying(rate=2**31 - 1),
    lying(bits=0),
    lying(block=0, bits=1),
    lying(form=0x55),
    lying(form=0xFFFE),
    b"\x1a\x45\xdf\xa3" + b"\xff" * 400,
    b"OggS" + b"\xff" * 400,
    b"fLaC" + b"\xff" * 400,
    b"\0\0\0\x20ftypM4A " + b"\xff" * 400,
    b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(400),
)


async def test_lying_headers_end_in_one_error_or_in_sound(directory: Path, serve_model: ServeModel) -> None:
    async with serve_model(directory) as stub:
        for data in LYING:
            try:
                await stub.Encode(request(data))
            except grpc.aio.AioRpcError as error:
                assert "Failed to load audio 0: " in str(error.details())
        answer = await stub.Encode(request(sound(1)))

    assert answer.encodings[0].mm_features


async def test_a_process_that_is_too_slow_or_killed_fails_its_audio_alone(
    directory: Path, serve_model: ServeModel, process: Callable[[], psutil.Process]
) -> None:
    async with serve_model(directory, audio_timeout_s=1) as stub:
        first = process()
        first.suspend()
        refused = await error_of(stub.Encode(request(sound(1))))
        answer = await stub.Encode(request(sound(2)))
        process().kill()
        again = await stub.Encode(request(sound(3)))

    assert refused.message == "Failed to load audio 0: it took longer than 1 s (audio_timeout_s)."
    assert answer.encodings[0].mm_features
    assert again.encodings[0].mm_features


async def test_a_feature_extractor_that_cannot_be_used_leaves_a_model_of_text(
    directory: Path, serve_model: ServeModel, tmp_path: Path
) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "preprocessor_config.json").write_text('{"feature_extractor_type": "New", "sampling_rate": 16000}')
    async with serve_model(tmp_path) as stub:
        text = await stub.Encode(tokenizer_pb2.EncodeRequest(texts=["Hi"]))
        refused = await error_of(stub.Encode(request(sound(1))))

    assert text.encodings[0].token_ids
    assert "cannot read audio input" in refused.message
