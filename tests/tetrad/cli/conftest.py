"""Fixtures of the command line's tests."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.certificates import Authority
from tests.tetrad.cli.commands import end_forks


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


@pytest.fixture(scope="module", autouse=True)
def _no_fork_is_left():
    """End what ran the commands of a module."""
    yield
    end_forks()
