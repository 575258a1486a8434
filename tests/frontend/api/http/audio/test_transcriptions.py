"""/v1/audio/transcriptions and /v1/audio/translations."""

import json

import openai
import pytest

from tests.frontend.fakes.speech import GERMAN, says
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import types_pb2

TWO = b"first|second"
# Segments of 0-2 s and 2-5 s, and one that ends with its piece.
TIMED = {"first": [*b" one", 204, 204, *b" two", 210], "second": [*b" three"]}


async def ask(frontend, data=b"first", path="transcriptions", **fields):
    file = ("speech.wav", data, "audio/wav")
    return await frontend.http.post(f"/v1/audio/{path}", files={"file": file}, data=fields)


async def answered(frontend, data=b"first", path="transcriptions", **fields):
    response = await ask(frontend, data, path, **fields)
    assert response.status_code == 200, response.text
    return response


async def refused(frontend, data=b"first", *, status=400, path="transcriptions", **fields):
    response = await ask(frontend, data, path, **fields)
    assert response.status_code == status, response.text
    return response.json()["error"]["message"], response.json()["error"]["param"]


def events(response):
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


class TestText:
    async def test_a_recording_is_written(self, hearing, engine, tokenizer):
        engine.reply = says({"first": " Mary had a lamb. "})

        response = await answered(hearing, language="de")

        assert response.json() == {"text": "Mary had a lamb.", "usage": {"type": "duration", "seconds": 30}}
        [request] = tokenizer.speech.requests
        assert (request.media_type, request.language) == ("audio/wav", "de")
        assert request.task == types_pb2.SPEECH_TASK_TRANSCRIBE

    async def test_pieces_are_joined_by_a_space(self, hearing, engine):
        engine.reply = says({"first": " Mary had", "second": " a lamb."})

        response = await answered(hearing, TWO, language="de")

        assert response.json()["text"] == "Mary had a lamb."

    async def test_pieces_of_japanese_are_joined_without_a_space(self, hearing, engine):
        engine.reply = says({"first": "メリー", "second": "さん"})

        response = await answered(hearing, TWO, language="ja")

        assert response.json()["text"] == "メリーさん"

    async def test_a_translation_has_no_usage(self, hearing, engine, tokenizer):
        engine.reply = says({"first": "Mary"})

        response = await answered(hearing, path="translations", language="de")

        assert response.json() == {"text": "Mary"}
        assert tokenizer.speech.requests[0].task == types_pb2.SPEECH_TASK_TRANSLATE

    async def test_plain_text_is_the_text_and_a_line_end(self, hearing, engine):
        engine.reply = says({"first": "Mary"})

        response = await answered(hearing, response_format="text")

        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        assert response.text == "Mary\n"

    async def test_sampling_fields_reach_the_engine(self, hearing, engine):
        engine.reply = says({"first": "Mary"})

        await answered(hearing, language="de", temperature="0.5", seed="7", top_k="3", max_completion_tokens="2")

        params = engine.requests[0].sampling_params
        assert (params.temperature, params.seed, params.top_k, params.max_tokens) == (0.5, 7, 3, 2)

    async def test_temperature_is_zero_by_default(self, hearing, engine):
        engine.reply = says({"first": "Mary"})

        await answered(hearing, language="de")

        assert engine.requests[0].sampling_params.temperature == 0

    async def test_the_engine_gets_the_piece_as_a_feature(self, hearing, engine):
        engine.reply = says({"first": "Mary"})

        await answered(hearing, language="de")

        [feature] = engine.requests[0].mm_features
        assert (feature.modality, feature.identifier) == ("audio", "audio-0")


class TestLanguage:
    async def test_the_model_finds_the_language_with_one_token(self, hearing, engine):
        engine.reply = says({"first": "eins", "second": "zwei"})

        response = await answered(hearing, TWO, response_format="verbose_json")

        found, *pieces = engine.requests
        assert (list(found.sampling_params.allowed_token_ids), found.sampling_params.max_tokens) == ([1, 2], 1)
        assert [unpack_u32(each.prompt_token_ids)[1] for each in pieces] == [GERMAN, GERMAN]
        assert response.json()["language"] == "de"

    async def test_a_given_language_is_not_looked_for(self, hearing, engine):
        engine.reply = says({"first": "eins"})

        await answered(hearing, language="ja")

        assert len(engine.requests) == 1


class TestSegments:
    async def test_verbose_json_has_the_times_of_sentences(self, hearing, engine):
        engine.reply = says(TIMED)

        body = (await answered(hearing, TWO, language="de", response_format="verbose_json")).json()

        assert (body["task"], body["duration"], body["text"]) == ("transcribe", 60.0, "one two three")
        assert [(each["start"], each["end"], each["text"]) for each in body["segments"]] == [
            (0.0, 2.0, " one"),
            (2.0, 5.0, " two"),
            (30.0, 60.0, " three"),
        ]
        assert [(each["id"], each["seek"]) for each in body["segments"]] == [(0, 0), (1, 0), (2, 3000)]
        assert body["segments"][0]["tokens"] == list(b" one")
        assert body["segments"][0]["avg_logprob"] == pytest.approx(-0.5)

    async def test_srt_numbers_its_cues(self, hearing, engine):
        engine.reply = says(TIMED)

        response = await answered(hearing, TWO, language="de", response_format="srt")

        assert response.text == (
            "1\n00:00:00,000 --> 00:00:02,000\none\n\n"
            "2\n00:00:02,000 --> 00:00:05,000\ntwo\n\n"
            "3\n00:00:30,000 --> 00:01:00,000\nthree\n"
        )

    async def test_vtt_begins_with_its_name(self, hearing, engine):
        engine.reply = says(TIMED)

        response = await answered(hearing, b"first", language="de", response_format="vtt")

        assert response.text == ("WEBVTT\n\n00:00:00.000 --> 00:00:02.000\none\n\n00:00:02.000 --> 00:00:05.000\ntwo\n")


class TestStreams:
    async def test_the_deltas_are_the_text(self, hearing, engine):
        engine.reply = says({"first": " Mary had ", "second": " a lamb. "})

        chunks = events(await answered(hearing, TWO, language="de", stream="true"))

        assert {chunk["object"] for chunk in chunks} == {"transcription.chunk"}
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "Mary had a lamb."
        assert "".join(chunk["delta"] for chunk in chunks[:-1]) == "Mary had a lamb."
        assert (chunks[-1]["type"], chunks[-1]["text"]) == ("transcript.text.done", "Mary had a lamb.")
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"

    async def test_usage_counts_the_tokens_of_all_pieces(self, hearing, engine):
        engine.reply = says({"first": "ab", "second": "cd"})

        chunks = events(await answered(hearing, TWO, language="de", stream="true", stream_include_usage="true"))

        usage = chunks[-1]["usage"]
        assert chunks[-1]["choices"] == []
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len("<transcribe>first<transcribe>second"), 6)

    async def test_a_translation_has_chunks_of_its_own(self, hearing, engine):
        engine.reply = says({"first": "Mary"})

        chunks = events(await answered(hearing, path="translations", stream="true"))

        assert {chunk["object"] for chunk in chunks} == {"translation.chunk"}

    async def test_a_piece_that_is_cut_off_is_named(self, hearing, engine):
        engine.reply = says({"first": "Mary"})

        chunks = events(await answered(hearing, language="de", stream="true", max_completion_tokens="2"))

        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


class TestOpenAIsClient:
    @pytest.fixture
    async def client(self, hearing):
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{hearing.port}/v1", api_key="none") as client:
            yield client

    async def test_it_reads_a_transcription(self, client, engine):
        engine.reply = says({"first": "Mary"})

        answer = await client.audio.transcriptions.create(model="fake", file=("a.wav", b"first"), language="de")

        assert answer.text == "Mary"

    async def test_it_reads_segments(self, client, engine):
        engine.reply = says(TIMED)

        answer = await client.audio.transcriptions.create(
            model="fake",
            file=("a.wav", b"first"),
            language="de",
            response_format="verbose_json",
            timestamp_granularities=["segment"],
        )

        assert [segment.end for segment in answer.segments] == [2.0, 5.0]

    async def test_it_reads_a_stream(self, client, engine):
        engine.reply = says({"first": "Mary"})

        stream = await client.audio.transcriptions.create(model="fake", file=("a.wav", b"first"), language="de", stream=True)
        found = [event async for event in stream]

        assert "".join(event.delta for event in found if event.type == "transcript.text.delta") == "Mary"
        assert (found[-1].type, found[-1].text) == ("transcript.text.done", "Mary")

    @pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
    async def test_it_reads_a_translation(self, client, engine):
        engine.reply = says({"first": "Mary"})

        answer = await client.audio.translations.create(model="fake", file=("a.wav", b"first"))

        assert answer.text == "Mary"


class TestRefusals:
    async def test_a_model_without_speech_says_so(self, frontend):
        assert await refused(frontend, status=501) == ("The model does not support Transcriptions API", None)

    async def test_a_model_that_only_transcribes_does_not_translate(self, tokenizer, engine, hearing, serve_frontend):
        tokenizer.speech.tasks = (types_pb2.SPEECH_TASK_TRANSCRIBE,)
        async with serve_frontend(listen="127.0.0.1:0") as running:
            message, _ = await refused(running, path="translations", status=501)

        assert message == "The model does not support Translations API"

    async def test_a_broken_file_is_named(self, hearing):
        assert await refused(hearing, b"broken") == ("Invalid or unsupported audio file.", "file")

    async def test_a_file_beyond_the_limit(self, tokenizer, engine, hearing, serve_frontend):
        async with serve_frontend(listen="127.0.0.1:0", max_speech_bytes=1024) as running:
            message, field = await refused(running, b"x" * 1025)

        assert message.startswith("Maximum file size exceeded: the audio file has at least 1025 bytes; the limit is 1024")
        assert field == "file"

    @pytest.mark.parametrize(
        ("fields", "message", "field"),
        [
            ({"language": "xx"}, "Unsupported language: 'xx'. Must be one of ['de', 'ja'].", "language"),
            ({"stream": "true", "response_format": "verbose_json"}, "verbose_json format doesn't support", "response_format"),
            ({"response_format": "diarized_json"}, "response_format diarized_json is not supported", "response_format"),
            ({"response_format": "xml"}, "response_format: Input should be 'json', 'text',", "response_format"),
            ({"temperature": "hot"}, "temperature: Input should be a valid number", "temperature"),
            ({"temperature": "3"}, "temperature must be in [0, 2], got 3.0.", "temperature"),
            ({"max_completion_tokens": "0"}, "max_tokens must be at least 1, got 0.", "max_tokens"),
            ({"use_beam_search": "true"}, "use_beam_search is not supported by this server.", "use_beam_search"),
            ({"hotwords": "Tetrad"}, "hotwords is not supported by this server.", "hotwords"),
            ({"chunking_strategy": "server_vad"}, "chunking_strategy 'server_vad' is not", "chunking_strategy"),
            ({"include[]": "logprobs"}, "include is not supported by this server.", "include"),
            ({"vllm_xargs": "["}, "vllm_xargs must be a JSON object.", "vllm_xargs"),
            ({"stream_include_usage": "true"}, "Stream options can only be defined", "stream_include_usage"),
            ({"timestamp_granularities[]": "line"}, "timestamp_granularities 'line' is not", "timestamp_granularities"),
            ({"timestamp_granularities[]": "word"}, "timestamp_granularities needs", "timestamp_granularities"),
            ({"timestamp_granularities[]": "segment"}, "timestamp_granularities needs", "timestamp_granularities"),
            ({"file": "text"}, "file is given twice; give it once.", "file"),
        ],
        ids=lambda value: str(value)[:40],
    )
    async def test_a_wrong_field_is_named(self, hearing, fields, message, field):
        found, param = await refused(hearing, **fields)

        assert found.startswith(message)
        assert param == field

    async def test_words_of_an_engine_core_that_does_not_find_them(self, hearing):
        fields = {"timestamp_granularities[]": "word", "response_format": "verbose_json"}
        message, field = await refused(hearing, status=501, **fields)

        assert message == (
            "timestamp_granularities 'word' is not supported: the engine core, or its worker, is of a release without it."
        )
        assert field == "timestamp_granularities"

    async def test_a_form_without_a_file(self, hearing):
        response = await hearing.http.post("/v1/audio/transcriptions", files={"model": (None, "fake")})

        assert response.status_code == 400
        assert response.json()["error"]["message"] == "file: Field required"

    async def test_a_body_of_json(self, hearing):
        response = await hearing.http.post("/v1/audio/transcriptions", json={"file": "x"})

        assert response.status_code == 415

    async def test_an_unknown_model(self, hearing):
        assert (await refused(hearing, model="other", status=404))[0] == "The model `other` does not exist."
