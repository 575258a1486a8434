"""Real speech and the real Whisper base: the text has the words that were said, and is that of transformers."""

import io
import os
import re
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from tests.e2e.conftest import ONE_TOKENIZER

MODEL, FOLDER = os.environ.get("TEST_WHISPER", ""), Path(os.environ.get("TEST_RECORDINGS", "."))
RECORDINGS = sorted(FOLDER.glob("*.wav")) if MODEL else []
MAX_WRONG_WORDS = 1
"""In a recording: one of the written texts has a word twice that is said once."""

pytestmark = pytest.mark.skipif(not MODEL, reason="make speech-test: fetches Whisper base and recordings, 180 MB")


@dataclass(frozen=True)
class Speech:
    """A server with Whisper base."""

    url: str

    def text(self, data: bytes, path: str = "transcriptions", **fields: str) -> dict:
        files = {"file": ("speech.wav", data, "audio/wav")}
        response = httpx.post(f"{self.url}/v1/audio/{path}", files=files, data={"model": "", **fields}, timeout=300)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="module")
def speech(start_module_server) -> Speech:
    flags = ("--model", MODEL, "--device", "cpu", "--dtype", "float32", *ONE_TOKENIZER)
    return Speech(start_module_server(*flags).url)


@pytest.fixture(scope="module")
def reference() -> Iterator:
    """transformers' answer to samples at 16 kHz."""
    model = WhisperForConditionalGeneration.from_pretrained(MODEL, dtype=torch.float32)
    extractor = WhisperFeatureExtractor.from_pretrained(MODEL)
    tokenizer = Tokenizer.from_file(f"{MODEL}/tokenizer.json")

    def answer(samples: np.ndarray) -> str:
        features = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features
        return tokenizer.decode(model.generate(features, language="en", task="transcribe")[0].tolist())

    return answer


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower().replace("mr.", "mister"))


def num_wrong(found: list[str], expected: list[str]) -> int:
    """Return the number of words to insert, remove or replace."""
    row = list(range(len(expected) + 1))
    for number, word in enumerate(found, 1):
        last, row[0] = row[0], number
        for index, other in enumerate(expected, 1):
            last, row[index] = row[index], min(row[index] + 1, row[index - 1] + 1, last + (word != other))
    return row[-1]


def samples_of(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def wav_of(samples: np.ndarray) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, 16_000, len(samples), "NONE", ""))
        file.writeframes(samples.tobytes())
    return data.getvalue()


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_text_of_a_recording_is_that_of_transformers_and_has_its_words(speech, reference, path):
    text = speech.text(path.read_bytes(), language="en")["text"]

    assert text.strip() == reference(samples_of(path) / 32768).strip()
    assert num_wrong(words(text), words(path.with_suffix(".txt").read_text())) <= MAX_WRONG_WORDS


def test_the_language_is_found(speech):
    answer = speech.text(RECORDINGS[0].read_bytes(), response_format="verbose_json")

    assert answer["language"] in ("en", "english")
    assert answer["text"].strip() == speech.text(RECORDINGS[0].read_bytes(), language="en")["text"].strip()


def test_a_recording_of_a_minute_has_all_words_and_times_in_their_order(speech):
    pause = np.zeros(8_000, np.int16)
    samples = np.concatenate([part for path in RECORDINGS * 3 for part in (samples_of(path), pause)])
    said = [word for path in RECORDINGS * 3 for word in words(path.with_suffix(".txt").read_text())]

    answer = speech.text(wav_of(samples), response_format="verbose_json", language="en")

    assert len(samples) / 16_000 == pytest.approx(answer["duration"], abs=0.1) and len(samples) > 60 * 16_000
    assert num_wrong(words(answer["text"]), said) <= len(said) // 10
    times = [time for each in answer["segments"] for time in (each["start"], each["end"])]
    assert times == sorted(times)
    assert times[-1] <= answer["duration"] + 0.1


def test_words_have_the_times_of_transformers(speech):
    path = RECORDINGS[0]
    model = WhisperForConditionalGeneration.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    tokenizer, config = WhisperTokenizer.from_pretrained(MODEL), model.generation_config
    later = [[layer, head] for layer in range(3, 6) for head in range(8)]
    config.alignment_heads = getattr(config, "alignment_heads", None) or later
    samples = samples_of(path) / 32768
    features = WhisperFeatureExtractor.from_pretrained(MODEL)(samples, sampling_rate=16_000, return_tensors="pt").input_features
    options = {"language": "en", "task": "transcribe", "return_timestamps": True, "return_token_timestamps": True}
    written = model.generate(features, return_dict_in_generate=True, **options)

    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word", "language": "en"}
    found = speech.text(path.read_bytes(), **fields)["words"]

    ends, [first_time] = written["token_timestamps"][0].tolist(), tokenizer.convert_tokens_to_ids(["<|0.00|>"])
    ids = written["sequences"][0].tolist()
    text = [place for place, token in enumerate(ids) if token < config.eos_token_id]
    assert all(token >= first_time for token in ids[text[-1] + 1 : -1])
    parts, _, places = _combine_tokens_into_words(tokenizer, [ids[place] for place in text], "english")
    assert [word["word"] for word in found] == [part.strip() for part in parts]
    assert [word["start"] for word in found] == pytest.approx([ends[text[each[0]] - 1] for each in places], abs=1e-3)
    # The last word ends in the recording; transformers finds its end in the silence that fills the 30 s.
    expected = [ends[text[each[-1]]] for each in places]
    assert [word["end"] for word in found[:-1]] == pytest.approx(expected[:-1], abs=1e-3)
    assert found[-1]["end"] <= len(samples) / 16_000
