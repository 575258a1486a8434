"""Audio over the APIs of a running server: the same sound brings the same answer, which is that of transformers."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from openai import OpenAI

from tests.audio_files import save_audio_model
from tests.audio_reference import AudioReference
from tests.documents import Page
from tests.e2e.conftest import ONE_TOKENIZER, Server
from tests.sounds import encoded, samples
from tests.tetrad.cli.commands import tetrad
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2

NUM_TOKENS = 16
TEXT = "What is said?"
GIVEN = samples(1.2, seed=5)
SOUND = encoded(GIVEN, codec="pcm_f32le")


@dataclass(frozen=True)
class Stack:
    """A server with a tiny model, and what transformers answers to `TEXT` and `SOUND`."""

    server: Server
    directory: Path
    text: str

    def ask(self, *parts: dict, **body: object) -> httpx.Response:
        messages = [{"role": "user", "content": [{"type": "text", "text": TEXT}, *parts]}]
        fields = {"model": "default", "temperature": 0, "max_tokens": NUM_TOKENS, "messages": messages, "ignore_eos": True}
        return httpx.post(f"{self.server.url}/v1/chat/completions", json=fields | body, timeout=60)

    def answer(self, *parts: dict) -> str:
        response = self.ask(*parts)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def stack(tmp_path_factory, start_module_server) -> Stack:
    directory = tmp_path_factory.mktemp("model")
    save_audio_model(directory, "qwen2_audio")
    (directory / "sound.wav").write_bytes(SOUND)
    reference = AudioReference(directory)
    token_ids = reference.generate(reference.prepare([TEXT, GIVEN]), NUM_TOKENS).token_ids
    text = reference.tokenizer.decode(token_ids, skip_special_tokens=True)
    flags = [*ONE_TOKENIZER, "--device", "cpu", "--threads", "1", "--max-model-len", "512", "--num-gpu-blocks-override", "200"]
    flags += ["--served-model-name", "default", "--allowed-local-media-path", str(directory)]
    server = start_module_server(str(directory), *flags)
    return Stack(server, directory, text)


def data() -> str:
    return base64.b64encode(SOUND).decode()


def test_every_form_of_a_part(stack):
    parts = [
        {"type": "input_audio", "input_audio": {"data": data(), "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data()}"}},
        {"type": "audio_url", "audio_url": {"url": f"file://{stack.directory}/sound.wav"}},
    ]

    assert [stack.answer(part) for part in parts] == [stack.text] * 3


def test_openais_client(stack):
    client = OpenAI(base_url=f"{stack.server.url}/v1", api_key="none", max_retries=0)
    audio = {"type": "input_audio", "input_audio": {"data": data(), "format": "wav"}}

    stream = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": [{"type": "text", "text": TEXT}, audio]}],
        max_tokens=NUM_TOKENS,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )

    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == stack.text


def test_responses(stack):
    client = OpenAI(base_url=f"{stack.server.url}/v1", api_key="none", max_retries=0)
    audio = {"type": "input_audio", "input_audio": {"data": data(), "format": "wav"}}
    parts = [{"type": "input_text", "text": TEXT}, audio]

    first = client.responses.create(
        model="default",
        input=[{"role": "user", "content": parts}],
        max_output_tokens=NUM_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    then = client.responses.create(model="default", input="And?", previous_response_id=first.id, max_output_tokens=1)

    assert first.output_text == stack.text
    assert then.usage.input_tokens > first.usage.input_tokens + NUM_TOKENS


def test_chat_completions_as_the_page_shows_them(stack, monkeypatch):
    monkeypatch.chdir(stack.directory)
    names: dict = {"client": OpenAI(base_url=f"{stack.server.url}/v1", api_key="none")}

    exec(Page.of("docs/requests.md").block("input_audio", language="python"), names)

    assert names["answer"].usage.prompt_tokens > 30


async def test_grpc(stack):
    part = inference_pb2.MediaPart(data=SOUND)
    parts = [inference_pb2.ContentPart(text=TEXT), inference_pb2.ContentPart(audio=part)]
    message = inference_pb2.ChatMessage(role="user", content_parts=parts)
    sampling = types_pb2.SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    async with grpc.aio.insecure_channel(stack.server.grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.ChatRequest(messages=[message], sampling_params=sampling)
        answers = [answer async for answer in stub.Chat(request)]

    assert answers


def test_a_chat_in_the_terminal(stack):
    flags = ("chat", "--url", stack.server.url, "--max-tokens", str(NUM_TOKENS), "--temperature", "0")
    audio = {"type": "input_audio", "input_audio": {"data": data(), "format": "wav"}}
    body = {"messages": [{"role": "user", "content": [audio, {"type": "text", "text": TEXT}]}]}
    expected = stack.ask(**body, ignore_eos=False).json()["choices"][0]["message"]["content"]

    shown = tetrad(*flags, "--audio", str(stack.directory / "sound.wav"), "-q", TEXT)

    assert expected in shown.stdout


def test_a_benchmark_sends_audio(stack, tmp_path):
    flags = ("--num-requests", "2", "--num-audios", "1", "--audio-seconds", "0.5", "--input-len", "4", "--output-len", "3")

    ran = tetrad("bench", "--url", stack.server.url, "--dataset-name", "random-mm", *flags, "--json", str(tmp_path / "out"))

    assert ran.returncode == 0, ran.stderr
    assert '"completed": 2' in (tmp_path / "out").read_text()


def test_lines_of_a_batch_file(stack, tmp_path):
    audio = {"type": "input_audio", "input_audio": {"data": data(), "format": "wav"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": TEXT}, audio]}]
    body = {"model": "default", "messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line))

    flags = ("run-batch", "-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    ran = tetrad(*flags, "--url", stack.server.url)

    assert ran.returncode == 0, ran.stderr
    [answer] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == stack.text


def test_errors(stack):
    refused = stack.ask({"type": "input_audio", "input_audio": {"data": base64.b64encode(b"noise").decode(), "format": "mp3"}})

    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(
        "Failed to load audio 0 (audio/mp3): the data is no audio of these formats"
    )
