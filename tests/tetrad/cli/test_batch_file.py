"""Batch files: valid lines, the content of outputs, and repeated requests. The whole command is in tests/e2e."""

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.certificates import Authority
from tetrad.cli.batch_file.lines import BadLine, BatchRequest, keys_of, read_lines
from tetrad.cli.batch_file.results import ResultFile, error_record, may_pass, response_record
from tetrad.cli.batch_file.sender import BatchSender
from tetrad.cli.batch_file.source import local_source
from tetrad.cli.batch_file.target import ResultTarget
from tetrad.cli.run_batch import run
from tetrad.services.errors import FailedPrecondition, InvalidRequest, NotFound, Unauthenticated, Unavailable

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
REQUEST = BatchRequest(1, "a", "/v1/completions", {"prompt": "x"})


def line(**changes: object) -> str:
    return json.dumps({**GOOD, **changes})


def written(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(each if isinstance(each, bytes) else each.encode() for each in lines))
    return path


def test_a_line_is_a_request_and_an_empty_one_is_nothing(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbf" + line().encode(), "", "  \r", line(custom_id="ü"))

    assert list(read_lines(path)) == [REQUEST, BatchRequest(4, "ü", "/v1/completions", {"prompt": "x"})]
    assert keys_of(path) == {"a": 1, "ü": 4}


@pytest.mark.parametrize(
    ("text", "custom_id", "code", "words"),
    [
        ("{", None, "invalid_json", "Line 1: not valid JSON"),
        (b"\xff\xfe", None, "invalid_json", "Line 1: not UTF-8 at byte 0"),
        ("[1]", None, "invalid_json", "got list"),
        ('{"custom_id": "a", "body": NaN}', None, "invalid_json", "NaN is not JSON"),
        ("[" * 100_000, None, "invalid_json", "nested too deeply"),
        ("{}", None, "invalid_custom_id", "got None"),
        (line(custom_id=7), None, "invalid_custom_id", "got 7"),
        (line(custom_id=""), None, "invalid_custom_id", "not empty"),
        (line(method="GET"), "a", "invalid_method", "got 'GET'"),
        (line(url="/v1/images"), "a", "invalid_url", "/v1/chat/completions, /v1/completions, /v1/embeddings, "),
        (line(url=["/v1/completions"]), "a", "invalid_url", "got ['/v1/completions']"),
        (line(body="x"), "a", "invalid_body", "got str"),
        (line(body={"stream": True}), "a", "invalid_body", "stream=true"),
    ],
)
def test_a_line_that_cannot_be_sent_says_why_and_where(tmp_path, text, custom_id, code, words):
    [found] = read_lines(written(tmp_path, text))

    assert isinstance(found, BadLine)
    assert (found.custom_id, found.code) == (custom_id, code)
    assert words in found.message
    assert found.message.startswith("Line 1: ")


def test_an_id_that_is_there_twice_is_refused_with_both_lines(tmp_path):
    path = written(tmp_path, line(), line(custom_id="b"), line(method="GET"))

    with pytest.raises(InvalidRequest, match="custom_id 'a' is on line 1 and again on line 3"):
        keys_of(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotFound, match=r"none\.jsonl: No such file"):
        keys_of(tmp_path / "none.jsonl")


def test_a_pipe_which_can_be_read_only_once_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(InvalidRequest, match=r"pipe is not a regular file.*read twice"):
        keys_of(pipe)


def test_wherever_a_write_was_cut_the_file_is_whole_again(tmp_path):
    whole = tmp_path / "whole.jsonl"
    with ResultFile(whole) as results:
        results.append(response_record(REQUEST, status_code=200, request_id="r", body={"text": "ü\n"}))
        results.append(error_record(BadLine(2, None, "invalid_json", "Line 2: no"), "invalid_json", "Line 2: no"))
    content = whole.read_bytes()
    first = content.index(b"\n") + 1

    for cut in range(len(content) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(content[:cut])
        with ResultFile(path) as results:
            assert results.done == ({"a", 2} if cut == len(content) else {"a"} if cut >= first else set())
            results.append(error_record(BatchRequest(3, "c", "", {}), "x", "y"))
        lines = path.read_bytes().splitlines(keepends=True)
        assert b"".join(lines[:-1]) == content[: len(content) if cut == len(content) else first if cut >= first else 0]
        assert json.loads(lines[-1])["custom_id"] == "c"


def request(custom_id: str) -> BatchRequest:
    return BatchRequest(1, custom_id, "/v1/completions", {})


def test_failures_that_may_pass_are_dropped_and_others_stay(tmp_path):
    path, link = tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    passing = [
        *(
            response_record(request(f"s{status}"), status_code=status, request_id="r", body={})
            for status in (429, 502, 503, 504)
        ),
        *(error_record(request(code), code, "gone") for code in ("connection_lost", "request_timeout")),
    ]
    staying = [
        response_record(request("good"), status_code=200, request_id="r", body={}),
        response_record(request("wrong"), status_code=400, request_id="r", body={}),
        error_record(BadLine(7, None, "invalid_json", "no"), "invalid_json", "no"),
    ]
    with ResultFile(path) as results:
        for record in (*passing, *staying):
            results.append(record)
    path.chmod(0o640)

    with ResultFile(link) as results:
        assert (results.done, results.failed) == ({"good", "wrong", 7}, {"wrong", 7})
        with pytest.raises(FailedPrecondition, match="Another run writes"):
            ResultFile(path)
        results.append(response_record(request("s429"), status_code=200, request_id="r", body={}))

    assert [json.loads(each)["custom_id"] for each in path.read_text().splitlines()] == ["good", "wrong", None, "s429"]
    assert (link.is_symlink(), path.stat().st_mode & 0o777) == (True, 0o640)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.jsonl", "out.jsonl"]


def test_a_failure_of_a_line_that_is_no_longer_in_the_batch_is_none_of_the_run(tmp_path, capsys):
    """The user has corrected the line under another id, or taken it out."""
    source, target = written(tmp_path, line()), tmp_path / "out.jsonl"
    with ResultFile(target) as results:
        results.append(response_record(request("a"), status_code=200, request_id="r", body={}))
        results.append(response_record(request("gone"), status_code=400, request_id="r", body={}))

    assert run(["-i", str(source), "-o", str(target)]) == 0
    assert "failed" not in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"precious", b"precious\n", b'{"id": "x", "custom_id": "a"}\n', b"[]\n", b"\xff\n"])
def test_a_file_that_is_no_output_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)

    with pytest.raises(InvalidRequest, match="line 1 is no result"):
        ResultFile(path)

    assert path.read_bytes() == content


def test_two_runs_cannot_write_one_output(tmp_path):
    with ResultFile(tmp_path / "out.jsonl"), pytest.raises(FailedPrecondition, match="Another run writes"):
        ResultFile(tmp_path / "out.jsonl")

    ResultFile(tmp_path / "out.jsonl").__exit__(None, None, None)


def test_an_output_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(Unavailable, match=r"Cannot write .*: No such file"):
        ResultFile(tmp_path / "nowhere" / "out.jsonl")


class Server:
    """Answers with what a test gives, call by call, the last one for ever; counts how many calls are under way."""

    def __init__(self, *answers: Callable[[], httpx.Response]) -> None:
        self._answers = list(answers)
        self.num_calls = self.most_at_once = self._now = 0
        self.key: str | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.num_calls += 1
        self.key = request.headers.get("authorization")
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            return (self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])()
        finally:
            self._now -= 1


def answered(status: int = 200, **headers: str) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(status, json={"answer": 1}, headers={"x-request-id": "r", **headers})


def broken(error: type[httpx.TransportError]) -> Callable[[], httpx.Response]:
    def answer() -> httpx.Response:
        raise error("gone")

    return answer


def sender(server: Server, **options) -> BatchSender:
    options = {"concurrency": 4, "timeout_s": 5.0, **options}
    return BatchSender("http://test/v1/", transport=httpx.MockTransport(server), **options)


async def result_of(server: Server, **options) -> dict:
    results: list[dict] = []
    await sender(server, **options).run(iter([REQUEST]), results.append)
    [result] = results
    return result


@pytest.mark.parametrize("status", [200, 400, 404, 500])
async def test_an_answer_of_any_kind_is_the_result(status):
    result = await result_of(Server(answered(status)))

    assert result["id"].startswith("batch_req_")
    assert result["custom_id"] == "a"
    assert result["response"] == {"status_code": status, "request_id": "r", "body": {"answer": 1}}
    assert result["error"] is None


@pytest.mark.parametrize(
    "first",
    [answered(429), answered(429, **{"retry-after": "0"}), answered(503), broken(httpx.ConnectError), broken(httpx.ReadError)],
)
async def test_a_server_that_cannot_answer_now_is_asked_again(first):
    server = Server(first, answered())

    result = await result_of(server)

    assert result["response"]["status_code"] == 200
    assert server.num_calls == 2


@pytest.mark.parametrize("answer", [answered(503), broken(httpx.ConnectError)])
async def test_a_server_that_stays_away_ends_the_run_without_results(answer):
    with pytest.raises(Unavailable, match=r"away for 0 s .*run the same command again"):
        await result_of(Server(answer), patience_s=0.0)


async def test_the_time_of_a_request_before_its_first_refusal_is_no_absence_of_the_server():
    server = Server(answered(503), answered())

    result = await result_of(server, patience_s=0.0)

    assert result["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (broken(httpx.ReadTimeout), "request_timeout"),
        (broken(httpx.RemoteProtocolError), "connection_lost"),
        (lambda: httpx.Response(200, text="<html>"), "invalid_response"),
        (lambda: httpx.Response(413, text="<html>"), "invalid_response"),
    ],
)
async def test_what_fails_for_one_request_is_its_result(answer, code):
    result = await result_of(Server(answer))

    assert result["response"] is None
    assert result["error"]["code"] == code
    assert result["error"]["line"] == 1


@pytest.mark.parametrize("status", [408, 502, 504])
async def test_a_proxys_page_about_a_failure_that_may_pass_is_such_a_failure(status):
    """Proxies answer these themselves, in HTML, when the server behind them does not."""
    result = await result_of(Server(lambda: httpx.Response(status, text="<html>")))

    assert may_pass(result)
    assert str(status) in result["error"]["message"]


async def test_no_more_requests_are_under_way_than_allowed_and_bad_lines_are_not_sent():
    server = Server(answered())
    lines = [BatchRequest(n, str(n), "/v1/completions", {}) for n in range(1, 31)]
    results: list[dict] = []

    await sender(server, concurrency=3).run(iter([*lines, BadLine(31, None, "invalid_json", "Line 31: no")]), results.append)

    assert server.most_at_once == 3
    assert server.num_calls == 30
    assert {result["custom_id"] for result in results} == {*(str(n) for n in range(1, 31)), None}
    assert [result["error"]["message"] for result in results if result["error"]] == ["Line 31: no"]


async def test_the_key_is_sent_and_a_wrong_one_found_before_anything_is_asked():
    server = Server(answered(401))

    with pytest.raises(Unauthenticated, match="--api-key"):
        await sender(server, api_key="secret").check()

    assert server.key == "Bearer secret"


@pytest.fixture
def https_server(tmp_path):
    """The URL of an https server that has no page, and the file of the authority that signed its certificate."""
    certificate = Authority(tmp_path, "office").certificate("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://localhost:{server.server_port}", certificate.ca
    server.shutdown()
    server.server_close()


async def test_a_server_is_trusted_if_its_authority_is(https_server):
    url, authority = https_server
    options = {"concurrency": 1, "timeout_s": 5.0}

    await BatchSender(url, ca_file=authority, **options).check()

    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await BatchSender(url, **options).check()


def test_a_batch_at_an_https_url_is_downloaded_if_its_authority_is_trusted(https_server):
    url, authority = https_server

    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"), local_source(f"{url}/in.jsonl"):
        pass
    # The server was trusted: it says that it has no such page.
    with pytest.raises(NotFound, match="the server answers 501"), local_source(f"{url}/in.jsonl", authority):
        pass


def test_an_authority_of_the_input_does_not_replace_those_of_the_system(tmp_path, https_server, monkeypatch):
    url, authority = https_server
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))  # the system's authorities
    another = Authority(tmp_path, "another").certificate("other").ca

    with pytest.raises(NotFound, match="the server answers 501"), local_source(f"{url}/in.jsonl", another):
        pass


@pytest.fixture
def upload_server(monkeypatch, tmp_path):
    """A server that takes uploads: `statuses` are its next answers, then 200; `uploads` has the path and content of each."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            uploads.append((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(statuses.pop(0) if statuses else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    uploads, statuses = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}/out.jsonl?key=1", uploads=uploads, statuses=statuses)
    server.shutdown()
    server.server_close()


def test_results_for_a_url_are_uploaded_and_removed(upload_server, capsys):
    with ResultTarget(upload_server.url) as target:
        target.path.write_text("{}\n")
        target.deliver()

    assert upload_server.uploads == [("/out.jsonl?key=1", "{}\n")]
    assert not target.path.parent.exists()
    assert capsys.readouterr().err == ""


def test_an_upload_is_tried_again(upload_server):
    upload_server.statuses += [503, 500]

    with ResultTarget(upload_server.url, retry_s=0.0) as target:
        target.path.write_text("{}\n")
        target.deliver()

    assert len(upload_server.uploads) == 3


def test_results_that_cannot_be_uploaded_are_kept_and_named(upload_server, capsys):
    upload_server.statuses += [403] * 9

    with (
        pytest.raises(Unavailable, match=r"Cannot upload the results to http://.*: the server answers 403\."),
        ResultTarget(upload_server.url, retry_s=0.0) as target,
    ):
        target.path.write_text("{}\n")
        target.deliver()

    assert target.path.read_text() == "{}\n"
    assert str(target.path) in capsys.readouterr().err


def test_a_run_that_has_not_begun_leaves_no_directory(upload_server, tmp_path):
    with pytest.raises(NotFound):
        run(["-i", str(tmp_path / "none.jsonl"), "-o", upload_server.url])

    assert (list(tmp_path.iterdir()), upload_server.uploads) == ([], [])


def test_an_output_that_is_no_url_is_named():
    with pytest.raises(InvalidRequest, match=r"'http://\[::1' is not a URL"):
        ResultTarget("http://[::1")


@pytest.fixture
def file_server(tmp_path):
    """`file_server(name, content)` gives the URL of a file; other URLs of the server are 404."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    directory = tmp_path / "served"
    directory.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(directory)))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def url_of(name: str, content: str) -> str:
        (directory / name).write_text(content)
        return f"http://127.0.0.1:{server.server_port}/{name}"

    yield url_of
    server.shutdown()
    server.server_close()


def test_a_batch_at_a_url_is_read_from_there(tmp_path, file_server, capsys):
    target = tmp_path / "out.jsonl"
    with ResultFile(target) as results:
        results.append(response_record(request("a"), status_code=200, request_id="r", body={}))

    assert run(["-i", file_server("in.jsonl", line()), "-o", str(target)]) == 0

    assert "1 of 1 requests are in" in capsys.readouterr().err


def test_a_downloaded_batch_is_removed(file_server):
    with local_source(file_server("in.jsonl", line())) as path:
        assert list(read_lines(path)) == [REQUEST]

    assert not path.parent.exists()


def test_sigterm_removes_the_file_of_a_download(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/in.jsonl"
        command = [sys.executable, "-m", "tetrad.cli", "run-batch", "-i", url, "-o", str(tmp_path / "out.jsonl")]
        with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
            connection, _ = server.accept()
            with connection:
                assert list(tmp_path.iterdir()), "the directory of the download"
                process.terminate()
                code = process.wait(timeout=60)

    assert (code, list(tmp_path.iterdir())) == (128 + signal.SIGTERM, [])


def test_a_url_without_a_file_is_named(file_server):
    url = f"{file_server('in.jsonl', '')}x"

    with pytest.raises(NotFound, match=rf"Cannot read the batch file {url}: the server answers 404\."), local_source(url):
        pass


@pytest.mark.parametrize(
    ("url", "error"),
    [("http://127.0.0.1:1/in.jsonl", Unavailable), ("http://", InvalidRequest), ("http://[::1", InvalidRequest)],
)
def test_a_url_that_cannot_be_read_is_named(url, error):
    with pytest.raises(error, match=re.escape(url)), local_source(url):
        pass
