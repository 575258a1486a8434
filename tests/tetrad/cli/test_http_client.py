"""HttpClient: events of a stream, and errors inside one."""

import json
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.tetrad.cli.commands import assert_one_line, tetrad
from tetrad.cli.batch_file.sender import BatchSender
from tetrad.cli.http_client import HttpClient
from tetrad.services.errors import InvalidRequest, Unavailable


@pytest.fixture
def client_of():
    """`client_of(*lines)` gives the client of a server that answers everything with these lines as a stream of events."""
    servers = []

    def start(*lines: str) -> HttpClient:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                self.do_GET()

            def do_GET(self):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                self.wfile.write("".join(f"{line}\n" for line in lines).encode())

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return HttpClient(f"http://127.0.0.1:{server.server_port}")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("client", [HttpClient, partial(BatchSender, concurrency=1, timeout_s=1.0)])
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:abc", "http://127.0.0.1:99999", "http://[::1", "127.0.0.1:8000", "http://", ""]
)
def test_what_is_no_url_is_named(client, url):
    with pytest.raises(InvalidRequest, match=re.escape(repr(url))):
        client(url)


@pytest.mark.parametrize("client", [HttpClient, partial(BatchSender, concurrency=1, timeout_s=1.0)])
def test_authorities_that_cannot_be_read_are_named(client, tmp_path):
    with pytest.raises(InvalidRequest, match=r"--ca-file .*none\.pem cannot be used: No such file"):
        client("https://127.0.0.1:8000", ca_file=tmp_path / "none.pem")


@pytest.mark.parametrize("client", [HttpClient, partial(BatchSender, concurrency=1, timeout_s=1.0)])
@pytest.mark.parametrize("key", ["ключ", "key\n"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(client, key):
    with pytest.raises(InvalidRequest, match="--api-key") as caught:
        client("http://127.0.0.1:8000", api_key=key)

    assert key not in caught.value.message


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get_json("/version"),
        lambda client: client.model_name(None),
        lambda client: client.post("/start_profile"),
        lambda client: list(client.stream("/v1/completions", {})),
    ],
)
def test_a_server_of_another_kind_is_one_line(client_of, call):
    """A web server that has the port may answer every path with a page."""
    with client_of("data: <!doctype html>", "") as client, pytest.raises(Unavailable, match=f"at {client.url} .* no JSON"):
        call(client)


@pytest.mark.parametrize("answer", ['{"object": "list", "data": []}', "{}"])
def test_a_server_without_models_is_one_line(client_of, answer):
    with client_of(answer) as client, pytest.raises(Unavailable, match=f"at {client.url} names no model"):
        client.model_name(None)


@pytest.mark.parametrize("value", [float("nan"), "\udcff"])
def test_a_request_that_json_cannot_hold_is_refused(client_of, value):
    """A value of /set in a chat, or bytes of an argument that are not UTF-8."""
    with client_of() as client, pytest.raises(InvalidRequest, match="cannot be sent as JSON"):
        list(client.stream("/v1/completions", {"value": value}))


def test_events_are_read_by_the_rules_of_their_format(client_of):
    """Comments, events of several lines, and a field without the space that is optional."""
    client = client_of(": hello", "", 'data:{"a":', "data: 1}", "", 'data: {"a": 2}', "", "data: [DONE]", "")

    with client:
        assert list(client.stream("/", {})) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("kind", "code", "error_class"),
    [
        ("server_error", "deadline_exceeded", Unavailable),
        ("server_error", "draining", Unavailable),
        ("invalid_request_error", "context_length_exceeded", InvalidRequest),
        ("rate_limit_error", None, Unavailable),
    ],
)
def test_an_error_inside_a_stream_ends_it_with_its_message(kind, code, error_class, client_of):
    error = {"error": {"message": "It ended early.", "type": kind, "code": code}}
    client = client_of('data: {"a": 1}', "", f"data: {json.dumps(error)}", "", "data: [DONE]", "")

    with client, pytest.raises(error_class, match=r"It ended early\."):
        list(client.stream("/", {}))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("5", "answers /v1/completions with no JSON object"),
        ("[" * 100_000, "answers /v1/completions with no JSON object"),
        ('{"error": "out of memory"}', "out of memory"),
        ('{"error": {"code": 5}}', '{"error": {"code": 5}}'),
    ],
)
def test_events_of_other_servers_are_one_line(client_of, event, words):
    """Ollama's errors, for example, are texts."""
    with client_of(f"data: {event}", "") as client, pytest.raises(Unavailable, match=re.escape(words)):
        list(client.stream("/v1/completions", {}))


@pytest.mark.parametrize("document", ["{}", "[]", '{"version": 1, "status": "ready", "data": 5}'])
@pytest.mark.parametrize(("command", "words"), [("status", "server"), ("profile", "Is it a"), ("chat", "server")])
def test_a_command_says_that_a_server_is_another_one(client_of, document, command, words):
    with client_of(document) as client:
        result = tetrad(command, "--url", client.url, *{"profile": ["--seconds", "0"], "chat": ["-q", "Hi"]}.get(command, []))

    assert_one_line(result, words)
