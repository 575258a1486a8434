"""Package index: downloads a verified wheel from the index of pip and uv, without pip."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tetrad.services.errors import NotFound
from tetrad.services.hub.package_index import IndexSettings, download_wheel, index_settings

WHEEL = b"PK\x03\x04 a wheel" * 1000
DIGEST = hashlib.sha256(WHEEL).hexdigest()
NAME = "tiny_model_files-1.0-py3-none-any.whl"
KEY = "Basic " + base64.b64encode(b"me:s3cret word").decode()


class Index(BaseHTTPRequestHandler):
    """An index of one project for those who have the key; `page` and `kind` are what its page is."""

    page, kind = "", "text/html"

    def do_GET(self) -> None:
        found = {"/simple/tiny-model-files/": self.page.encode(), f"/files/{NAME}": WHEEL}.get(self.path)
        status = 401 if self.headers["Authorization"] != KEY else 404 if found is None else 200
        body = found if status == 200 and found is not None else b"no"
        self.send_response(status)
        self.send_header("Content-Type", self.kind if self.path.endswith("/") else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def host(monkeypatch) -> Iterator[str]:
    monkeypatch.setattr(Index, "page", f'<a href="../other.whl">x</a><a href="../../files/{NAME}#sha256={DIGEST}">{NAME}</a>')
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def with_key(host: str) -> IndexSettings:
    return IndexSettings((f"http://me:s3cret%20word@{host}/simple/",))


def test_a_page_of_links_and_a_key_in_the_url(host, tmp_path):
    seen: list[tuple[int, int]] = []

    wheel = download_wheel("Tiny.Model_files", "1.0", tmp_path, with_key(host), lambda *sizes: seen.append(sizes))

    assert (wheel.name, wheel.read_bytes()) == (NAME, WHEEL)
    assert seen[-1] == (len(WHEEL), len(WHEEL))


def test_a_page_in_json(host, tmp_path, monkeypatch):
    page = {"files": [{"url": f"http://{host}/files/{NAME}", "hashes": {"sha256": DIGEST}}]}
    monkeypatch.setattr(Index, "page", json.dumps(page))
    monkeypatch.setattr(Index, "kind", "application/vnd.pypi.simple.v1+json")

    assert download_wheel("tiny-model-files", "1.0", tmp_path, with_key(host)).read_bytes() == WHEEL


@pytest.mark.parametrize(
    ("package", "version", "digest", "words"),
    [
        ("tiny-model-files", "1.0", "0" * 64, "the index says 000"),
        ("tiny-model-files", "2.0", DIGEST, r"it has no tiny_model_files-2\.0-"),
        ("other", "1.0", DIGEST, "HTTP status 404"),
    ],
)
def test_what_an_index_does_not_have_is_one_line_without_its_key(host, tmp_path, monkeypatch, package, version, digest, words):
    monkeypatch.setattr(Index, "page", Index.page.replace(DIGEST, digest))

    with pytest.raises(NotFound, match=words) as caught:
        download_wheel(package, version, tmp_path, with_key(host))

    message = caught.value.message
    assert f"http://{host}/simple/" in message
    assert "PIP_INDEX_URL" in message
    assert "s3cret" not in message
    assert "\n" not in message


class BreakingIndex(BaseHTTPRequestHandler):
    """An index behind a proxy that breaks off in the middle of a page."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"400\r\n<a href=")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_the_next_index_is_asked_where_the_first_breaks_off(host, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), BreakingIndex) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        broken = f"http://127.0.0.1:{server.server_address[1]}/simple/"
        settings = IndexSettings((broken, *with_key(host).indexes))
        wheel = download_wheel("tiny-model-files", "1.0", tmp_path, settings)
        server.shutdown()

    assert wheel.read_bytes() == WHEEL


def test_the_next_index_is_asked_where_the_first_has_none_and_a_folder_before_all(host, tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    [index] = with_key(host).indexes
    several = IndexSettings((f"http://{host}/simple", "ftp://127.0.0.1/", index), (folder,))

    assert download_wheel("tiny-model-files", "1.0", tmp_path, several).parent == tmp_path
    (folder / NAME).write_bytes(WHEEL)
    assert download_wheel("tiny-model-files", "1.0", tmp_path, several) == folder / NAME


def test_an_index_may_be_a_folder_of_pages(tmp_path):
    project = tmp_path / "simple" / "tiny-model-files"
    project.mkdir(parents=True)
    (project / "index.html").write_text(f'<a href="{NAME}">{NAME}</a>')
    (project / NAME).write_bytes(WHEEL)

    wheel = download_wheel("tiny-model-files", "1.0", tmp_path, IndexSettings(((tmp_path / "simple").as_uri(),)))

    assert wheel.read_bytes() == WHEEL


def test_settings_are_those_of_pip_and_uv(tmp_path):
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://config/simple\nextra-index-url =\n  https://a/s\n  https://b/s\n")
    file = {"PIP_CONFIG_FILE": str(config)}

    assert index_settings(file).indexes == ("https://config/simple", "https://a/s", "https://b/s")
    assert index_settings(file | {"UV_INDEX_URL": "https://uv/s"}).indexes[0] == "https://uv/s"
    both = {"UV_INDEX_URL": "https://uv/s", "PIP_INDEX_URL": "https://pip/s", "PIP_CERT": "/ca.pem"}
    assert index_settings(file | both).indexes[0] == "https://pip/s"
    assert index_settings(both).certificates == "/ca.pem"
    offline = index_settings({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels file:///more"})
    assert (offline.indexes, [str(each) for each in offline.folders]) == ((), ["/wheels", "/more"])
