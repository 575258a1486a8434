"""`tetrad status`: its output for a healthy server, an unhealthy one, and the services of each."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tetrad.cli import status
from tetrad.services.errors import InvalidRequest
from tetrad.stack.stack_url import write_url

WELL = {"name": "tokenizer 0", "ready": True, "problem": ""}
LOST = {"name": "tokenizer 1", "ready": False, "problem": "not connected: Connection refused"}
ENGINE = {"name": "engine core 0", "ready": True, "problem": ""}
NO_WORKER = {"name": "engine core 0", "ready": False, "problem": "its worker is lost"}
METRICS = """# TYPE tetrad:num_requests_running gauge
tetrad:num_requests_running{model_name="m"} 3.0
# TYPE tetrad:num_requests_waiting gauge
tetrad:num_requests_waiting{model_name="m"} 1.0
# TYPE tetrad:generation_tokens_total counter
tetrad:generation_tokens_total{model_name="m"} 7.0
"""


@pytest.fixture(autouse=True)
def no_stacks(monkeypatch):
    """This machine's own stacks are no concern of these tests."""
    monkeypatch.setattr(status, "private_directories", list)


@pytest.fixture
def keys():
    """The Authorization header of each request to a server."""
    return []


@pytest.fixture
def serve(keys):
    """`serve(health)` gives the URL of a server that says so of itself."""
    servers = []

    def start(health, code=200):
        answers = {
            "/version": (200, {"version": "1.2.3"}),
            "/health/ready": (code, health),
            "/v1/models": (200, {"data": [{"id": "m", "max_model_len": 512}]}),
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                keys.append(self.headers["Authorization"])
                code, body = answers.get(self.path, (200, None))
                data = METRICS.encode() if body is None else json.dumps(body).encode()
                self.send_response(code)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def health(*dependencies, problem=""):
    state = "not ready" if problem else "ready"
    return {"status": state, "problem": problem, "draining": False, "dependencies": list(dependencies)}


def test_a_server_that_is_well_shows_its_model_its_needs_and_its_load(serve, capsys):
    url = serve(health(WELL, LOST, ENGINE))

    assert status.run(["--url", url]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"server      {url}  ready  Tetrad 1.2.3  m (context 512 tokens)"
    assert lines[1] == "needs       tokenizer 0 ready,  tokenizer 1 not connected: Connection refused,  engine core 0 ready"
    assert lines[2] == "load        num_requests_running 3  num_requests_waiting 1"


def test_a_server_that_is_not_ready_says_why_and_what_is_missing(serve, capsys):
    url = serve(health(WELL, NO_WORKER, problem="No engine core makes progress (its worker is lost)."), code=503)

    assert status.run(["--url", url]) == 1

    printed = capsys.readouterr()
    assert printed.err == f"server      {url}  not ready: No engine core makes progress (its worker is lost).\n"
    assert printed.out == "needs       tokenizer 0 ready,  engine core 0 its worker is lost\n"


def test_the_key_of_the_command_line_goes_with_every_request(serve, keys):
    status.run(["--url", serve(health(WELL)), "--api-key", "secret"])

    assert keys
    assert set(keys) == {"Bearer secret"}


def test_a_server_that_is_not_there_is_one_line(capsys):
    assert status.run(["--url", "http://127.0.0.1:9"]) == 1

    printed = capsys.readouterr()
    assert printed.err.startswith("server      http://127.0.0.1:9  not ready: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--interval-s", "2"], "--interval-s is the time between updates of --watch: give --watch, too"),
        (["--watch", "--interval-s", "0"], "--interval-s must be more than 0 and finite, got 0"),
    ],
)
def test_an_interval_is_a_time_between_updates(arguments, words):
    with pytest.raises(InvalidRequest, match=words):
        status.run(["--url", "http://127.0.0.1:9", *arguments])


def test_a_server_at_a_url_shows_the_stack_that_has_it_and_no_other(serve, tmp_path, monkeypatch, capsys):
    url = serve(health(WELL, ENGINE))
    for name, its_url in [("own", url), ("other", "http://127.0.0.1:9")]:
        (tmp_path / name).mkdir()
        write_url(tmp_path / name, its_url)
        (tmp_path / name / "worker.sock").touch()
    monkeypatch.setattr(status, "private_directories", lambda: [tmp_path / "other", tmp_path / "own"])

    assert status.run(["--url", url]) == 0

    _, stacks = capsys.readouterr().out.split("load  ")
    stack, worker = stacks.splitlines()[1:]
    assert stack == f"stack       {url}"
    assert worker.startswith(f"worker      unix:{tmp_path}/own/worker.sock  unreachable (")


def test_all_stacks_are_shown_where_no_url_is_given(tmp_path, monkeypatch, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write_url(tmp_path / "one", "http://127.0.0.1:9")
    monkeypatch.setattr(status, "private_directories", lambda: [tmp_path / "one", tmp_path / "two"])

    status.run([])

    stacks = [line for line in capsys.readouterr().out.splitlines() if line.startswith("stack ")]
    assert stacks == ["stack       http://127.0.0.1:9", f"stack       {tmp_path}/two"]


@pytest.fixture
def watching(serve):
    """A watch as a process, its output a pipe or a terminal, and its keyboard a terminal."""
    started = []

    def start(*, terminal):
        keyboard, keys = pty.openpty()
        url = serve(health(WELL, ENGINE))
        command = [sys.executable, "-m", "tetrad.cli", "status", "--url", url, "--watch", "--interval-s", "0.2"]
        process = subprocess.Popen(command, stdin=keys, stdout=keys if terminal else subprocess.PIPE)
        os.close(keys)
        started.append((process, keyboard))
        return process, keyboard

    yield start
    for process, keyboard in started:
        process.kill()
        process.communicate()
        os.close(keyboard)


def test_a_watch_that_is_piped_goes_on_line_by_line_until_it_is_interrupted(watching):
    process, _ = watching(terminal=False)

    looks = [list(iter(lambda: process.stdout.readline().decode(), "\n")) for _ in range(3)]
    process.send_signal(signal.SIGINT)

    assert all(lines[0].startswith("server      http://") and "\x1b" not in lines[0] for lines in looks)
    assert looks[0][2] == "load        num_requests_running 3  num_requests_waiting 1\n"
    assert looks[1][2].endswith("  tokens_per_s 0.0\n")
    assert process.wait(10) == 130


@pytest.mark.parametrize("pressed", [b"q", b"xQ"])
def test_a_watch_in_a_terminal_writes_over_itself_and_ends_with_q(watching, pressed):
    process, keyboard = watching(terminal=True)
    seen = b""

    while seen.count(b"load  ") < 2:
        seen += os.read(keyboard, 4096)
    os.write(keyboard, pressed)

    assert seen.count(b"\x1b[H") >= 2
    assert process.wait(10) == 0
