"""A Hugging Face hub on this machine, with the paths that its client uses."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "a" * 40


class HubServer:
    """Serves repositories, by name: file name -> content.

    Attributes:
        fetched: files whose content was sent.
        ranges: files and first bytes of requests for a part.
        tokens: repository -> the token without which it is gated.
        breaks: files that break off in the middle, and how many times yet.
        commits: branches, and their commits.
        facts: further facts of every model, as {"safetensors": {"total": 5, "parameters": {"F32": 5}}}.
    """

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.fetched: list[str] = []
        self.ranges: list[tuple[str, int]] = []
        self.tokens: dict[str, str] = {}
        self.breaks: dict[str, int] = {}
        self.commits = {"main": COMMIT}
        self.facts: dict[str, object] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                hub._answer(self, with_body=False)

            def do_GET(self) -> None:
                hub._answer(self, with_body=True)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        """Answer /api/models/ORG/NAME/revision/REV, /api/models/ORG/NAME/tree/REV and /ORG/NAME/resolve/REV/FILE."""
        parts = request.path.partition("?")[0].strip("/").removeprefix("api/models/").split("/")
        name, kind, revision = "/".join(parts[:2]), *(parts[2:4] or ["revision", "main"])
        files = self.repositories.get(name)
        commit = revision if revision in self.commits.values() else self.commits.get(revision)
        token = self.tokens.get(name)
        if files is None:
            self._send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
        elif token is not None and request.headers.get("Authorization") != f"Bearer {token}":
            self._send(request, 403 if kind == "resolve" else 401, b"", {"X-Error-Code": "GatedRepo"})
        elif commit is None:
            self._send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif kind == "revision":
            siblings = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
            self._send_json(request, {"id": name, "sha": commit, "siblings": siblings, **self.facts})
        elif kind == "tree":
            entries = [{"type": "file", "path": n, "size": len(data), "oid": _etag(data)} for n, data in files.items()]
            self._send_json(request, entries)
        else:
            self._send_file(request, "/".join(parts[4:]), files, commit, with_body=with_body)

    def _send_file(
        self, request: BaseHTTPRequestHandler, name: str, files: dict[str, bytes], commit: str, *, with_body: bool
    ) -> None:
        content = files.get(name)
        if content is None:
            self._send(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        headers = {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": commit}
        first = int((request.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        if first:
            self.ranges.append((name, first))
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        sent = content[first:]
        if with_body and self.breaks.get(name, 0):
            self.breaks[name] -= 1
            self._send(request, 206 if first else 200, sent[: len(sent) // 2], headers | {"Content-Length": str(len(sent))})
            return
        if with_body:
            self.fetched.append(name)
        self._send(request, 206 if first else 200, sent, headers, with_body=with_body)

    def _send_json(self, request: BaseHTTPRequestHandler, value: object) -> None:
        self._send(request, 200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], *, with_body: bool = True
    ) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        if with_body:
            request.wfile.write(body)


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def use_hub(hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the client in this process at a hub and at an empty cache: it reads HF_* variables when it is first imported."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
