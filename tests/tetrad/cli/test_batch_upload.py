"""Results of batch files at a URL: uploaded, tried again, kept if they cannot be uploaded."""

import json
import signal
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from tetrad.cli.batch_file.target import ResultTarget
from tetrad.cli.run_batch import run
from tetrad.services.errors import InvalidRequest, NotFound, Unavailable


@pytest.fixture
def upload_server(monkeypatch, tmp_path):
    """A server that takes uploads: `statuses` are its next answers, then 200; `uploads` has the path and content of each, and
    `at_sigterm` the handler of the signal during each."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_error(504)

        def do_PUT(self):
            at_sigterm.append(signal.getsignal(signal.SIGTERM))
            uploads.append((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(statuses.pop(0) if statuses else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    uploads, statuses, at_sigterm = [], [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    yield SimpleNamespace(
        address=address, url=f"{address}/out.jsonl?key=1", uploads=uploads, statuses=statuses, at_sigterm=at_sigterm
    )
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


def test_a_run_that_is_terminated_while_it_uploads_names_the_file_of_its_results(upload_server, tmp_path, capsys):
    """The event loop of the run, which has a handler of its own, has ended by then."""
    batch = tmp_path / "in.jsonl"
    batch.write_text("no request\n")

    assert run(["-i", str(batch), "-o", upload_server.url, "--url", upload_server.address]) == 1

    [(_, content)], [handler] = upload_server.uploads, upload_server.at_sigterm
    assert json.loads(content)["error"]["line"] == 1
    with pytest.raises(SystemExit), ResultTarget(upload_server.url) as target:
        target.path.write_text(content)
        handler(signal.SIGTERM, None)
    assert str(target.path) in capsys.readouterr().err


@pytest.mark.parametrize("is_uploaded", [True, False])
def test_temporary_failures_are_sent_again_by_the_same_command_if_its_results_stay(
    upload_server, tmp_path, capsys, is_uploaded
):
    """A run whose results are uploaded keeps none: the same command would send every request again."""
    batch = tmp_path / "in.jsonl"
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    batch.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
    output = upload_server.url if is_uploaded else str(tmp_path / "out.jsonl")

    assert run(["-i", str(batch), "-o", output, "--url", upload_server.address, "--timeout-s", "9"]) == 1

    said = capsys.readouterr().err
    assert "1 of the failures may pass" in said
    assert ("run the same command again" in said) is not is_uploaded


def test_a_run_that_has_not_begun_leaves_no_directory(upload_server, tmp_path):
    with pytest.raises(NotFound):
        run(["-i", str(tmp_path / "none.jsonl"), "-o", upload_server.url])

    assert (list(tmp_path.iterdir()), upload_server.uploads) == ([], [])


def test_an_output_that_is_no_url_is_named():
    with pytest.raises(InvalidRequest, match=r"'http://\[::1' is not a URL"):
        ResultTarget("http://[::1")
