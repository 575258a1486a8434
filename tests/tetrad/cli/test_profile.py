"""`tetrad profile` without a server of Tetrad: invalid options, and a trace that cannot be copied."""

import json
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tetrad.cli.profile import run
from tetrad.services.errors import InvalidRequest, TetradError


@pytest.fixture
def called():
    """The paths to which requests were sent."""
    return []


@pytest.fixture
def url(tmp_path, called):
    """The URL of a server that has written the trace of one worker."""
    trace = tmp_path / "tetrad-worker-0.json"
    trace.write_text("{}")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            called.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"paths": [str(trace)]}).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_length_that_no_recording_can_have_is_refused_before_it_starts(seconds):
    with pytest.raises(InvalidRequest, match=f"--seconds must be .* got {seconds}"):
        run(["--url", "http://127.0.0.1:9", "--seconds", seconds])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_recording(url, called, monkeypatch, number):
    monkeypatch.setattr("time.sleep", lambda _: os.kill(os.getpid(), number))
    monkeypatch.setattr("signal.getsignal", lambda _: signal.SIG_DFL)  # nohup ignores SIGHUP

    with pytest.raises((SystemExit, KeyboardInterrupt)):
        run(["--url", url, "--seconds", "600"])

    assert called == ["/start_profile", "/stop_profile"]


def test_a_service_without_a_file_for_its_trace_is_refused(url):
    with pytest.raises(InvalidRequest, match="give --output, too"):
        run(["--url", url, "--service", "frontend"])


def test_the_trace_of_a_service_is_copied(url, tmp_path):
    assert run(["--url", url, "--seconds", "0", "-o", str(tmp_path / "copy.json")]) == 0

    assert (tmp_path / "copy.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("{here}", "--output {here} is a directory"),
        ("{here}/none/copy.json", "--output {here}/none/copy.json cannot be written: there is no directory {here}/none"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_recording(tmp_path, output, words):
    with pytest.raises(InvalidRequest, match=words.format(here=tmp_path)):
        run(["--url", "http://127.0.0.1:9", "--output", output.format(here=tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "/dev/full"), "/dev/full cannot be written: No space left on device"),
        (("-o", "{here}/copy.json", "--service", "frontend"), "no trace of a frontend"),
    ],
)
def test_a_trace_that_cannot_be_copied_is_one_line_with_the_paths(url, tmp_path, arguments, words, capsys):
    with pytest.raises(TetradError, match=words):
        run(["--url", url, "--seconds", "0", *(each.format(here=tmp_path) for each in arguments)])

    assert "tetrad-worker-0.json" in capsys.readouterr().out
