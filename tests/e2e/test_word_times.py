"""Words of a recording through all four services: their times are those of transformers' Whisper, also if services are lost."""

import asyncio
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration
from transformers.utils import ModelOutput

from tests.combinations.apis import served as apis
from tests.e2e.adapted_stack import kill, restartable, served, steps_pass
from tests.e2e.speech_reference import RATE, SpeechReference, save_talkative_whisper
from tests.e2e.test_images import client_of
from tests.sounds import encoded, samples
from tetrad.frontend.speech.words import split_words
from tetrad.tokenizer_svc.speech.cutting import cut
from tetrad.v1 import inference_pb2, types_pb2

SECONDS = 4
NUM_TOKENS = 40
HEADS = [[1, 0], [2, 1], [0, 1]]
WAVE = samples(6.5, seed=2)
OPTIONS = {"max_model_len": 448, "num_gpu_blocks_override": 200}
FORM = {"language": "de", "response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}


@dataclass(frozen=True)
class Piece:
    """The tokens that a model writes about a piece of a recording, and the end of each by transformers, in seconds."""

    start_s: float
    token_ids: list[int]
    ends: list[float]


class Times:
    """transformers' times of tokens.

    Args:
        reference: the model.
    """

    def __init__(self, reference: SpeechReference, directory) -> None:
        self._reference = reference
        self._eager = WhisperForConditionalGeneration.from_pretrained(directory, attn_implementation="eager").eval()

    @torch.inference_mode()
    def pieces(self, wave: np.ndarray, num_tokens: int) -> list[Piece]:
        reference, prompt = self._reference, self._reference.prompt("de", last=())
        found = []
        for start, end in pairwise(cut(wave, RATE, SECONDS)):
            features = reference.extractor(wave[start:end], sampling_rate=RATE, return_tensors="pt").input_features
            rules = {"with_times": True, "written_before": int(((end - start) / RATE - 0.5) / 0.02)}
            ids = reference.write(features, prompt, num_tokens, **rules).token_ids
            found.append(Piece(start / RATE, ids, self._ends(features, prompt, ids, (end - start) // 160)))
        return found

    def _ends(self, features: torch.Tensor, prompt: list[int], ids: list[int], num_frames: int) -> list[float]:
        given = torch.tensor([prompt + ids])
        attentions = self._eager(input_features=features, decoder_input_ids=given, output_attentions=True).cross_attentions
        output = ModelOutput(cross_attentions=(attentions,), sequences=given)
        times = self._eager._extract_token_timestamps(output, HEADS, num_frames=num_frames, num_input_ids=len(prompt))
        return times[0, len(prompt) : len(prompt) + len(ids)].tolist()

    def words(self, piece: Piece) -> list[tuple[str, float, float]]:
        """Return the words between timestamps."""
        [first_time] = self._reference.ids("<|0.00|>")
        ends, words, ids = [0.0, *piece.ends], [], []
        for place, token in enumerate([*piece.token_ids, first_time]):
            if token < first_time:
                ids.append(token)
                continue
            prefixes = [self._reference.tokenizer.decode(ids[: count + 1]) for count in range(len(ids))]
            first = place - len(ids)
            words += [
                (part.text.strip(), piece.start_s + ends[first + part.first], piece.start_s + ends[first + part.last + 1])
                for part in (split_words(prefixes, has_spaces=True) if ids else [])
            ]
            ids = []
        return words


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("words")
    save_talkative_whisper(path, num_seconds=SECONDS, seed=5)
    return path


@pytest.fixture(scope="module")
def expected(directory):
    times = Times(SpeechReference(directory), directory)
    return [word for piece in times.pieces(WAVE, NUM_TOKENS) for word in times.words(piece)]


async def ask(http, **fields) -> dict:
    answer = await http.post(
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", encoded(WAVE, codec="pcm_f32le"))},
        data=FORM | {"max_completion_tokens": str(NUM_TOKENS)} | fields,
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(body: dict, expected: list[tuple[str, float, float]]) -> None:
    assert [word["word"] for word in body["words"]] == [text for text, _, _ in expected]
    assert [word["start"] for word in body["words"]] == pytest.approx([start for _, start, _ in expected], abs=1e-3)
    assert [word["end"] for word in body["words"]] == pytest.approx([end for _, _, end in expected], abs=1e-3)


async def test_words_have_transformers_times(directory, expected):
    assert len(expected) > 30
    async with served(directory, "word-times", **OPTIONS) as llm, client_of(llm) as http:
        body = await ask(http)
        several = await asyncio.gather(*(ask(http) for _ in range(3)))
        without = await ask(http, **{"timestamp_granularities[]": ["segment"]})

    check(body, expected)
    assert [each["words"] for each in several] == [body["words"]] * 3
    assert "words" not in without
    assert without["text"] == body["text"]


async def test_words_over_grpc(directory, expected, tmp_path):
    file = encoded(WAVE, codec="pcm_f32le")
    options = {"language": "de", "with_segments": True, "with_words": True}
    call = inference_pb2.TranscribeOptions(**options, sampling_params=types_pb2.SamplingParams(max_tokens=NUM_TOKENS))
    parts = [inference_pb2.TranscribeRequest(options=call), inference_pb2.TranscribeRequest(data=file)]
    async with served(directory, "grpc-words", **OPTIONS) as llm, apis(llm, tmp_path) as client:
        answers = [each async for each in client.grpc.Transcribe(iter(parts))]

    words = [word for each in answers for word in each.words]
    check({"words": [{"word": each.text.strip(), "start": each.start_s, "end": each.end_s} for each in words]}, expected)


async def test_prompts_in_chunks_and_a_lost_worker_change_no_time(directory, expected):
    options = OPTIONS | {"max_num_batched_tokens": 16, "num_gpu_blocks_override": 60}
    async with restartable(directory, "lost-words", **options) as services, client_of(services.llm) as http:
        running = asyncio.gather(*(ask(http) for _ in range(2)))
        await steps_pass(services.llm, 30)
        assert not running.done()
        await kill(services, "worker")
        for body in await running:
            check(body, expected)
