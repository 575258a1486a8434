"""Batch files at a URL: read, removed afterwards, refused."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.certificates import Authority
from tests.tetrad.cli.batch_lines import REQUEST, line, request
from tetrad.cli.batch_file.lines import read_lines
from tetrad.cli.batch_file.results import ResultFile, response_record
from tetrad.cli.batch_file.source import local_source
from tetrad.cli.run_batch import run
from tetrad.services.errors import InvalidRequest, NotFound, Unavailable


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
