"""Recordings in batch files: a form with the file at `file_url`, as vLLM has them."""

import base64

import httpx
import pytest

from tests.tetrad.cli.batch_lines import line
from tetrad.cli.batch_file.contents import BadContentError, content_of, fetched
from tetrad.cli.batch_file.lines import BadLine, BatchRequest, read_lines
from tetrad.cli.batch_file.sender import BatchSender
from tetrad.frontend.api.http.requests.multipart import boundary_of, split_form

DATA = b"\x00RIFF\r\n"
URL = f"data:audio/wav;base64,{base64.b64encode(DATA).decode()}"
PATH = "/v1/audio/transcriptions"


def server(requests):
    """Return a transport with a server that transcribes, and one that has a recording."""

    def answer(request):
        requests.append(request)
        if request.url.host == "files":
            return httpx.Response(200, content=DATA) if request.url.path == "/a.wav" else httpx.Response(404)
        return httpx.Response(200, json={"text": "Mary"}, headers={"x-request-id": "r"})

    return httpx.MockTransport(answer)


async def results(*bodies, api_key=None):
    requests, found = [], []
    sender = BatchSender("http://test", concurrency=1, timeout_s=5.0, api_key=api_key, transport=server(requests))
    lines = [BatchRequest(number, str(number), PATH, body) for number, body in enumerate(bodies)]
    await sender.run(iter(lines), found.append)
    return found, requests


async def test_the_fields_and_the_file_are_a_form():
    body = {"file_url": URL, "language": "en", "temperature": 0.5, "timestamp_granularities": ["segment"], "seed": None}

    data, media_type = await content_of(BatchRequest(1, "a", PATH, {**body, "vllm_xargs": {"a": 1}}), fetch=None)

    parts = {part.name: part.data for part in split_form(data, boundary_of(media_type))}
    assert parts == {
        "language": b"en",
        "temperature": b"0.5",
        "timestamp_granularities[]": b"segment",
        "vllm_xargs": b'{"a": 1}',
        "file": DATA,
    }


async def test_a_recording_in_the_line_or_behind_a_url_is_sent():
    found, requests = await results({"file_url": URL}, {"file_url": "http://files/a.wav"}, api_key="secret")

    assert [each["response"]["body"] for each in found] == [{"text": "Mary"}] * 2
    forms = [request for request in requests if request.url.host == "test"]
    for request in forms:
        [part] = split_form(request.read(), boundary_of(request.headers["content-type"]))
        assert (part.name, part.data) == ("file", DATA)
    assert ["authorization" in request.headers for request in requests] == [True, False, True]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:audio/wav;base64,!", "file_url has no valid base64"),
        ("data:audio/wav,x", "file_url must be data:TYPE;base64,DATA, or an http or https URL."),
        ("http://files/b.wav", "file_url was answered with status 404."),
    ],
)
async def test_a_recording_that_is_not_there_fails_its_line_alone(url, message):
    found, _ = await results({"file_url": url}, {"file_url": URL})

    assert found[0]["error"]["code"] == "invalid_file"
    assert found[0]["error"]["message"].startswith(message)
    assert found[1]["error"] is None


async def test_a_url_that_leads_to_too_much_is_left(monkeypatch):
    monkeypatch.setattr("tetrad.cli.batch_file.contents._MAX_FILE_BYTES", 3)
    async with httpx.AsyncClient(transport=server([])) as client:
        with pytest.raises(BadContentError, match="more than 3 bytes"):
            await fetched(client, "http://files/a.wav")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "file_url must be a data:, http: or https: URL of a recording, got NoneType."),
        ({"file_url": "file:///etc/passwd"}, "file_url must be a data:, http: or https: URL"),
        ({"file_url": URL, "response_format": "srt"}, "response_format must be json or verbose_json in a batch, got 'srt'."),
        ({"file_url": URL, "stream": True}, "stream=true is not possible in a batch"),
    ],
)
def test_a_line_without_a_recording_says_so(tmp_path, body, words):
    path = tmp_path / "in.jsonl"
    path.write_text(line(url=PATH, body=body))

    [found] = read_lines(path)

    assert isinstance(found, BadLine)
    assert words in found.message
