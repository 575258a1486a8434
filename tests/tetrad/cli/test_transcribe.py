"""`tetrad transcribe` sends a recording as a form, and prints the text of the answer."""

import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.tetrad.cli.commands import assert_one_line, tetrad
from tetrad.cli.transcribe import run
from tetrad.frontend.api.http.requests.multipart import boundary_of, split_form

SUBTITLES = "1\n00:00:00,000 --> 00:00:02,000\nMary had a lamb.\n"
DELTAS = [{"choices": [{"delta": {"content": text}, "finish_reason": None}]} for text in ("Mary had", " a lamb.")]


class Server(ThreadingHTTPServer):
    """A server with a model that transcribes.

    Attributes:
        forms: the fields of every form received, and the paths.
        refuses: the server has no such model.
        reason: why the text ends.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.forms, self.refuses, self.reason = [], False, "stop"

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, json.dumps({"data": [{"id": "whisper"}]}))

    def do_POST(self):
        data = self.rfile.read(int(self.headers["content-length"]))
        form = {part.name: part.data.decode() for part in split_form(data, boundary_of(self.headers["content-type"]))}
        self.server.forms.append((self.path, form))
        if self.server.refuses:
            self.answer(501, json.dumps({"error": {"message": "The model does not support Transcriptions API"}}))
        elif "stream" in form:
            last = {"choices": [{"delta": {"content": ""}, "finish_reason": self.server.reason}]}
            events = [f"data: {json.dumps(event)}\n\n" for event in (*DELTAS, last)]
            self.answer(200, "".join([*events, "data: [DONE]\n\n"]), "text/event-stream")
        else:
            self.answer(200, SUBTITLES, "text/plain")

    def answer(self, status, text, media_type="application/json"):
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "speech.wav"
    path.write_bytes(b"RIFF")
    return str(path)


def test_the_text_is_printed_and_the_file_is_sent_with_its_options(server, recording):
    result = tetrad("transcribe", recording, "--url", server.url, "--language", "en", "--prompt", "Names: Mary")

    assert (result.returncode, result.stdout, result.stderr) == (0, "Mary had a lamb.\n", "")
    [(path, form)] = server.forms
    assert path == "/v1/audio/transcriptions"
    expected = {"model": "whisper", "response_format": "text", "language": "en", "prompt": "Names: Mary", "stream": "true"}
    assert form == expected | {"file": "RIFF"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_the_line_that_waits_is_gone_before_the_text(server, recording, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)

    assert run([recording, "--url", server.url]) == 0

    assert terminal.getvalue().startswith("\r\x1b[K[  0.0 s] speech.wav")
    assert terminal.getvalue().endswith("(0.0 MB)\r\x1b[KMary had a lamb.\n")


def test_subtitles_are_printed_whole(server, recording):
    result = tetrad("transcribe", recording, "--url", server.url, "--format", "srt", "--model", "other", "--translate")

    assert result.stdout == SUBTITLES
    assert server.forms == [("/v1/audio/translations", {"model": "other", "response_format": "srt", "file": "RIFF"})]


def test_a_text_that_is_cut_off_is_named(server, recording):
    server.reason = "length"

    result = tetrad("transcribe", recording, "--url", server.url)

    assert result.stdout == "Mary had a lamb.\n"
    assert result.stderr == "The text is not complete: length.\n"


def test_a_model_that_does_not_transcribe_is_one_line(server, recording):
    server.refuses = True

    result = tetrad("transcribe", recording, "--url", server.url)

    assert_one_line(result, "The model does not support Transcriptions API")
    assert result.returncode == 78


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.wav",), ("none.wav", "No such file")),
        (("/",), ("Is a directory",)),
        (("/dev/null",), ("/dev/null", "is empty")),
        (("/dev/null", "--format", "doc"), ("--format", "invalid choice: 'doc'")),
        (("/dev/null", "--timeout-s", "0"), ("--timeout-s must be more than 0, got 0.0",)),
    ],
)
def test_wrong_arguments_are_one_line(arguments, words):
    assert_one_line(tetrad("transcribe", *arguments), *words)


def test_without_a_server_it_says_how_to_start_one(recording):
    assert_one_line(tetrad("transcribe", recording, "--url", "http://127.0.0.1:9"), "http://127.0.0.1:9", "tetrad serve")


def test_a_prompt_that_is_not_utf_8_is_one_line(server, recording):
    result = tetrad("transcribe", recording, "--url", server.url, "--prompt", "a\udcff")

    assert_one_line(result, "The field prompt cannot be sent in UTF-8")
    assert server.forms == []


def test_the_name_of_a_file_may_be_other_than_utf_8(server, tmp_path):
    path = tmp_path / "speech\udcff.wav"
    path.write_bytes(b"RIFF")

    result = tetrad("transcribe", str(path), "--url", server.url)

    assert (result.returncode, result.stdout) == (0, "Mary had a lamb.\n")


def test_flags_of_an_engine_need_a_server_of_its_own(recording):
    result = tetrad("transcribe", recording, "--url", "http://127.0.0.1:9", "--block-size", "32")

    assert_one_line(result, "With --url, the server decides")
