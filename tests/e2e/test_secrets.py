"""`tetrad serve` with keys over HTTPS, at debug level: its output and answers never contain a key."""

import os
import socket
import ssl
import subprocess
import sys

import grpc
import httpx
import pytest

from benchmarks.stack import free_port
from tests.certificates import Authority
from tests.e2e.conftest import ONE_TOKENIZER
from tests.tetrad.cli.commands import tetrad

KEY, OPERATOR_KEY, FILE_KEY = "sk-user-6f1d0c", "sk-operator-b2a9e7", "sk-file-77c3d1"
WRONG_KEY, PROMPT = "sk-wrong-4e5f60", "the-patient-is-called-Eve"
SECRETS = (KEY, OPERATOR_KEY, FILE_KEY, WRONG_KEY, PROMPT)
READY_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ca")


@pytest.fixture(scope="module")
def server(tmp_path_factory, authority):
    """Yield (URL, port of gRPC, the file that holds all its output)."""
    directory = tmp_path_factory.mktemp("secrets")
    keys = directory / "keys"
    keys.write_text(f"{FILE_KEY}\n")
    identity = authority.certificate("server")
    port, grpc_port, log = free_port(), free_port(), directory / "log"
    flags = ["--port", str(port), "--grpc-port", str(grpc_port), "--device", "sim", "--log-level", "debug", *ONE_TOKENIZER]
    flags += ["--ssl-certfile", str(identity.cert), "--ssl-keyfile", str(identity.key), "--api-key-file", str(keys)]
    environment = os.environ | {
        "TETRAD_FRONTEND_API_KEY": KEY,
        "TETRAD_FRONTEND_OPERATOR_API_KEY": OPERATOR_KEY,
        "TETRAD_FRONTEND_RESPONSES_STORE": "none",
    }
    with log.open("wb") as file:
        command = [sys.executable, "-m", "tetrad.cli", "serve", *flags]
        # A pipe tells when it is ready; everything but that line goes to the log.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, env=environment)
        try:
            first = process.stdout.readline().decode()
            assert "https://127.0.0.1" in first, f"{first}{log.read_text()}"
            yield f"https://localhost:{port}", grpc_port, log
        finally:
            process.terminate()
            file.write(process.communicate(timeout=15)[0])


@pytest.fixture
def client(server, authority):
    with httpx.Client(base_url=server[0], verify=ssl.create_default_context(cafile=authority.cert), timeout=30) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", [KEY, OPERATOR_KEY, FILE_KEY])
def test_each_key_opens_http_and_grpc(server, authority, client, key):
    answer = client.post("/v1/completions", headers=bearer(key), json={"prompt": PROMPT, "max_tokens": 1})
    credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes())
    with grpc.secure_channel(f"localhost:{server[1]}", credentials) as channel:
        models = channel.unary_unary("/tetrad.v1.ModelService/ListModels")(
            b"", metadata=[("authorization", f"Bearer {key}")], timeout=10
        )

    assert answer.status_code == 200
    assert models


def test_nothing_that_is_said_or_shown_holds_a_secret(server, authority, client):
    url, grpc_port, log = server
    body = {"prompt": PROMPT, "max_tokens": 1}
    shown = [
        client.post(path, headers=headers, json=sent)
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/pause", "/no/such/path")
        for headers in (bearer(KEY), bearer(WRONG_KEY), {"x-api-key": WRONG_KEY}, {"authorization": f"Basic {WRONG_KEY}"}, {})
        for sent in ({**body, "max_tokens": -1}, {"messages": 3})
    ]
    shown += [client.get(path, headers=bearer(KEY)) for path in ("/server_info", "/metrics", "/openapi.json", "/v1/models")]
    shown.append(client.post("/resume", headers=bearer(OPERATOR_KEY)))
    credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes())
    with grpc.secure_channel(f"localhost:{grpc_port}", credentials) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/tetrad.v1.ModelService/ListModels")(b"", metadata=[("x-api-key", WRONG_KEY)], timeout=10)
    for port in (int(url.rpartition(":")[2]), grpc_port):
        with socket.create_connection(("localhost", port)) as broken:  # no TLS at all, with a key in clear text
            broken.sendall(f"GET / HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
            broken.recv(100)

    said = log.read_text()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not [secret for secret in (KEY, OPERATOR_KEY, FILE_KEY) for text in shown if secret in text.text + str(text.headers)]
    assert not [secret for secret in SECRETS if secret in said]
    assert said.count("\n") > 5


@pytest.mark.parametrize("flag", ["--allow-credentials", "--max-n=0"])
def test_a_mistake_in_the_settings_shows_no_key(flag, monkeypatch):
    monkeypatch.setenv("TETRAD_FRONTEND_API_KEY", KEY)
    monkeypatch.setenv("TETRAD_FRONTEND_ALLOWED_ORIGINS", "*")

    done = tetrad("serve", "--device", "sim", flag)

    assert done.returncode != 0
    assert KEY not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_commands_accept_https(server, authority):
    flags = ["--url", server[0], "--ca-file", str(authority.cert), "--api-key", KEY, "--max-tokens", "2"]

    def run(*flags: str) -> subprocess.CompletedProcess:
        return tetrad("complete", "hi", *flags)

    assert run(*flags).returncode == 0
    without_ca = run(*flags[:2], *flags[4:])
    assert without_ca.returncode != 0
    assert "certificate" in without_ca.stderr.lower()
