"""Recordings through all four services: the text is that of transformers' Whisper, also if services are lost."""

import asyncio
import json

import numpy as np
import pytest

from tests.e2e.adapted_stack import kill, restartable, served, steps_pass
from tests.e2e.speech_reference import RATE, SpeechReference, save_talkative_whisper
from tests.e2e.test_images import client_of
from tests.sounds import encoded, samples
from tests.whisper_files import LANGUAGES
from tetrad.tokenizer_svc.speech.cutting import cut

NUM_TOKENS = 24
SHORT, LONG = samples(4.0, seed=1), samples(70.0, seed=2)
OPTIONS = {"max_model_len": 448, "num_gpu_blocks_override": 400}


def file_of(wave: np.ndarray) -> bytes:
    return encoded(wave, codec="pcm_f32le")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("speech")
    save_talkative_whisper(path)
    return path


@pytest.fixture(scope="module")
def reference(directory):
    return SpeechReference(directory)


@pytest.fixture(scope="module")
def expected(reference):
    """The tokens of each piece of LONG."""
    return [reference.write(each, reference.prompt("de"), NUM_TOKENS).token_ids for each in reference.features(LONG)]


async def ask(http, wave, path="transcriptions", **fields):
    answer = await http.post(
        f"/v1/audio/{path}",
        files={"file": ("a.wav", file_of(wave), "audio/wav")},
        data={"max_completion_tokens": str(NUM_TOKENS)} | fields,
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    return answer


def joined(reference, pieces):
    return " ".join(filter(None, map(reference.text, pieces)))


async def test_a_recording_has_transformers_text(directory, reference, expected):
    text = joined(reference, expected)
    assert len(expected) == 3
    assert len(text) > 10
    async with served(directory, "speech", **OPTIONS) as llm, client_of(llm) as http:
        whole = (await ask(http, LONG, language="de")).json()
        streamed = await ask(http, LONG, language="de", stream="true")
        others = await asyncio.gather(*(ask(http, LONG, language="de") for _ in range(3)))

    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert whole == {"text": text, "usage": {"type": "duration", "seconds": 70}}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == text
    assert [other.json()["text"] for other in others] == [text] * 3


async def test_segments_have_transformers_tokens_times_and_logprobs(directory, reference):
    prompt = reference.prompt("de", last=())
    end = cut(LONG, RATE, 30.0)[1] / RATE
    rules = {"with_times": True, "written_before": int((end - 0.5) / 0.02)}
    found = reference.write(reference.features(LONG)[0], prompt, 4 * NUM_TOKENS, **rules)
    [first_time] = reference.ids("<|0.00|>")
    times = [min((token - first_time) * 0.02, end) for token in found.token_ids if token >= first_time]
    async with served(directory, "segments", **OPTIONS) as llm, client_of(llm) as http:
        fields = {"response_format": "verbose_json", "max_completion_tokens": str(4 * NUM_TOKENS)}
        body = (await ask(http, LONG, language="de", **fields)).json()

    segments = [each for each in body["segments"] if each["seek"] == 0]
    assert len(segments) > 2
    assert [token for each in segments for token in each["tokens"]] == [id_ for id_ in found.token_ids if id_ < first_time]
    assert [each["start"] for each in segments] == pytest.approx(times[: 2 * len(segments) : 2])
    assert [each["end"] for each in segments[:-1]] == pytest.approx(times[1 : 2 * len(segments) - 2 : 2])
    last = 1 + len(segments[0]["tokens"])  # behind the time of the beginning; its own time is that of the end
    assert segments[0]["no_speech_prob"] == pytest.approx(reference.no_speech(reference.features(LONG)[0], "de"), rel=1e-3)
    assert segments[0]["avg_logprob"] == pytest.approx(np.mean(found.logprobs[1 : last + 1]), abs=1e-4)


async def test_the_language_the_task_and_the_text_before(directory, reference):
    features = reference.features(SHORT)[0]
    language = reference.language(SHORT, LANGUAGES)
    found = {
        "language": reference.write(features, reference.prompt(language), NUM_TOKENS),
        "translation": reference.write(features, reference.prompt("de", "translate"), NUM_TOKENS),
        "prompt": reference.write(features, reference.prompt("de", before="Tetrad"), NUM_TOKENS),
    }
    async with served(directory, "prompts", **OPTIONS) as llm, client_of(llm) as http:
        answers = {
            "language": (await ask(http, SHORT)).json(),
            "translation": (await ask(http, SHORT, "translations", language="de")).json(),
            "prompt": (await ask(http, SHORT, language="de", prompt="Tetrad")).json(),
        }
        verbose = (await ask(http, SHORT, response_format="verbose_json")).json()

    assert {name: answer["text"] for name, answer in answers.items()} == {
        name: reference.text(written.token_ids) for name, written in found.items()
    }
    assert verbose["language"] == language


@pytest.mark.parametrize("killed", ["worker", "engine_core"])
async def test_a_lost_service_changes_nothing(directory, reference, expected, killed):
    async with restartable(directory, f"lost-{killed}", **OPTIONS) as services, client_of(services.llm) as http:
        running = asyncio.create_task(ask(http, LONG, language="de"))
        await steps_pass(services.llm, 4)
        assert not running.done()
        await kill(services, killed)
        answer = await running

    assert answer.json()["text"] == joined(reference, expected)


async def test_a_lost_tokenizer_is_asked_again(directory, reference, expected):
    async with restartable(directory, "lost-tokenizer", **OPTIONS) as services, client_of(services.llm) as http:
        running = asyncio.create_task(ask(http, LONG, language="de"))
        await asyncio.sleep(0.2)  # the process of recordings starts
        assert not running.done()
        await kill(services, "tokenizer")
        answer = await running

    assert answer.json()["text"] == joined(reference, expected)


async def test_files_that_cannot_be_read_are_refused_and_others_go_on(directory, reference, expected):
    async with served(directory, "bad-speech", **OPTIONS) as llm, client_of(llm) as http:
        good = asyncio.create_task(ask(http, LONG, language="de"))
        for data in (b"no audio", file_of(SHORT)[:40], b"RIFF\xff\xff\xff\xffWAVEfmt "):
            answer = await http.post("/v1/audio/transcriptions", files={"file": ("a.wav", data)})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
            assert answer.json()["error"]["message"].startswith("Invalid or unsupported audio file")

        assert (await good).json()["text"] == joined(reference, expected)
