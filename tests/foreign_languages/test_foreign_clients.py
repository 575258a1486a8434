"""`make clients-test`: clients built from the .proto files alone, as docs/clients.md says, stream a completion."""

import subprocess

import pytest

from tests.documents import ROOT, Page
from tests.e2e.conftest import Server

PAGE = Page.of("docs/clients.md")


@pytest.fixture(scope="module")
def server(tmp_path_factory, smollm2):
    server = Server(tmp_path_factory.mktemp("cpu") / "log", "--max-model-len", "2048")
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.mark.parametrize(("word", "separator"), [("npm ci", ":"), ("build.sh", " ")], ids=["TypeScript", "Java"])
def test_a_client_streams_a_completion(server, word, separator):
    commands = PAGE.block(word)
    target = server.grpc_target.replace(":", separator)

    ran = subprocess.run(
        ["bash", "-euc", commands.replace(f"127.0.0.1{separator}50050", target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " Paris." in ran.stdout
