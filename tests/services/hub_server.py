"""A Hugging Face hub on this machine: the few paths by which its client downloads a repository."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


class HubServer:
    """Serves repositories, by name: file name -> content. `fetched` lists the files whose content was sent."""

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.fetched: list[str] = []
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
        path = request.path.partition("?")[0].strip("/")
        parts = path.removeprefix("api/models/").split("/")
        files = self.repositories.get("/".join(parts[:2]))
        kind = parts[2] if len(parts) > 2 else "revision"
        if files is None:
            self._send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
        elif kind == "revision":
            siblings = [{"rfilename": name} for name in files]
            self._send_json(request, {"id": "/".join(parts[:2]), "sha": COMMIT, "siblings": siblings})
        elif kind == "tree":
            entries = [{"type": "file", "path": n, "size": len(data), "oid": _etag(data)} for n, data in files.items()]
            self._send_json(request, entries)
        elif (content := files.get("/".join(parts[4:]))) is None:
            self._send(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        else:
            if with_body:
                self.fetched.append("/".join(parts[4:]))
            headers = {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT}
            self._send(request, 200, content, headers, with_body=with_body)

    def _send_json(self, request: BaseHTTPRequestHandler, value: object) -> None:
        self._send(request, 200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], *, with_body: bool = True
    ) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if with_body:
            request.wfile.write(body)


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
