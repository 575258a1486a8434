"""Profile tls of docs/deployment.md: every port serves callers with a certificate and refuses those without."""

import ssl
import time

import httpx
import pytest

from tests.compose.project import READY_TIMEOUT_S
from tests.documents import Page

START, ASK = Page.of("docs/deployment.md").section("TLS").blocks()
GRPC_PORTS = [
    ("frontend-tls", 50050),
    ("tokenizer-tls", 50051),
    ("engine-core-tls", 50052),
    ("engine-core-tls", 50054),
    ("worker-tls", 50053),
]
# Asks as a stranger, then with the certificate of the service that it runs beside; prints how either ended.
CALL = """
import pathlib, grpc
def ask(credentials):
    opened = grpc.insecure_channel(target) if credentials is None else grpc.secure_channel(target, credentials)
    with opened as channel:
        try:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
            return "OK"
        except grpc.RpcError as error:
            return error.code().name
ca, key, cert = (pathlib.Path("/certificates", name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt"))
print(ask(None), ask(grpc.ssl_channel_credentials(ca)), ask(grpc.ssl_channel_credentials(ca, key, cert)))
"""


@pytest.fixture(scope="module")
def client_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("client")


@pytest.fixture(scope="module")
def stack(make_project, client_directory):
    project = make_project("tls", directory=client_directory)
    project.run(START)
    return project


def client_context(directory) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=directory / "ca.crt")
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return context


def wait_ready(stack, directory):
    url, deadline = f"https://localhost:{stack.port}/health", time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, verify=client_context(directory)).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(stack.logs())


def test_a_client_with_the_certificate_is_answered(stack, client_directory):
    wait_ready(stack, client_directory)

    assert "smollm2-135m-instruct" in stack.run(ASK)


def test_http_refuses_a_client_without_a_certificate(stack, client_directory):
    wait_ready(stack, client_directory)
    trusting = ssl.create_default_context(cafile=client_directory / "ca.crt")

    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://localhost:{stack.port}/health", verify=trusting)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{stack.port}/health")


@pytest.mark.parametrize(("service", "port"), GRPC_PORTS)
def test_every_grpc_port_serves_a_certificate_and_refuses_strangers(stack, client_directory, service, port):
    wait_ready(stack, client_directory)

    ended = stack.python("tokenizer-tls", f'target = "{service}:{port}"\n{CALL}')

    assert ended == "UNAVAILABLE UNAVAILABLE OK\n"
