"""Four processes over TCP with mutual TLS, as on several machines: access, and certificates that change."""

import concurrent.futures
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest

from benchmarks.stack import free_port
from tests.certificates import Authority, Certificate

TIMEOUT_S = 60
NAMES = {
    "tokenizer": "tetrad.v1.TokenizerService",
    "worker": "tetrad.v1.WorkerService",
    "engine_core": "tetrad.v1.EngineCoreService",
    "admin": "tetrad.v1.EngineCoreAdminService",
    "frontend": "tetrad.v1.InferenceService",
}
GUARDED = ("tokenizer", "worker", "engine_core", "admin")
BODY = {"prompt": "TLS", "max_tokens": 4, "temperature": 0}


@dataclass
class Stack:
    """The processes.

    Attributes:
        ports: of the gRPC servers and of HTTP.
        certificates: name of a service -> where it finds its identity.
    """

    directory: Path
    ports: dict[str, int]
    certificates: dict[str, Certificate]
    processes: dict[str, subprocess.Popen]

    @property
    def url(self) -> str:
        return f"https://localhost:{self.ports['http']}"

    def log_of(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def start(self, name: str, *flags: str, environment: dict[str, str]) -> subprocess.Popen:
        command = [sys.executable, "-m", f"tetrad.{'frontend' if name.startswith('frontend') else name + '_svc'}", *flags]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
        self.processes[name] = process
        return process

    def frontend_flags(self, http_port: int) -> list[str]:
        ports = self.ports
        targets = {"tokenizer-targets": "tokenizer", "engine-targets": "engine_core", "engine-admin-targets": "admin"}
        flags = [f"--{flag}=localhost:{ports[name]}" for flag, name in targets.items()]
        return [*flags, "--port", str(http_port), "--responses-store", "none"]

    def health(self, name: str, credentials: grpc.ChannelCredentials | None) -> None:
        target = f"localhost:{self.ports[name]}"
        opened = grpc.insecure_channel(target) if credentials is None else grpc.secure_channel(target, credentials)
        with opened as channel:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)

    def serial_at(self, port: int, certificate: Certificate) -> str:
        """Return the serial number of the certificate that a new connection is shown."""
        context = ssl.create_default_context(cafile=certificate.ca)
        context.load_cert_chain(certificate.cert, certificate.key)
        with (
            socket.create_connection(("localhost", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            return connection.getpeercert()["serialNumber"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ca")


@pytest.fixture(scope="module")
def stack(tmp_path_factory, authority, smollm2) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("tls")
    stack = Stack(directory, {name: free_port() for name in (*NAMES, "http")}, {}, {})
    for name in ("tokenizer", "worker", "engine_core", "frontend"):
        (directory / name).mkdir()
        stack.certificates[name] = authority.certificate(name).copy_to(directory / name)

    def start(name: str, *flags: str) -> None:
        stack.start(name, *flags, environment=stack.certificates[name].environment(f"TETRAD_{name.upper()}"))

    ports, model = stack.ports, str(smollm2)
    try:
        start("tokenizer", "--listen", f"127.0.0.1:{ports['tokenizer']}", "--model", model)
        start("worker", "--listen", f"127.0.0.1:{ports['worker']}", "--device", "sim")
        start(
            "engine_core",
            *("--listen", f"127.0.0.1:{ports['engine_core']}", "--admin-listen", f"127.0.0.1:{ports['admin']}"),
            *("--worker-target", f"localhost:{ports['worker']}", "--model", model),
            *("--tokenizer-targets", f"localhost:{ports['tokenizer']}"),
        )
        start("frontend", *stack.frontend_flags(ports["http"]), "--grpc-port", str(ports["frontend"]))
        _wait_ready(stack, authority)
        yield stack
    finally:
        for process in stack.processes.values():
            process.terminate()
        for process in stack.processes.values():
            process.wait(15)


def _wait_ready(stack: Stack, authority: Authority) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    with httpx.Client(verify=ssl.create_default_context(cafile=authority.cert)) as client:
        while time.monotonic() < deadline:
            for name, process in stack.processes.items():
                assert process.poll() is None, stack.log_of(name)
            try:
                if client.get(f"{stack.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
    raise AssertionError("\n".join(map(stack.log_of, stack.processes)))


def test_a_stack_over_tcp_with_mutual_tls_answers(stack, authority):
    with httpx.Client(base_url=stack.url, verify=ssl.create_default_context(cafile=authority.cert)) as client:
        answer = client.post("/v1/completions", json=BODY)
        paused = client.get("/is_paused")

    assert answer.json()["usage"]["completion_tokens"] == 4
    assert paused.json() == {"is_paused": False}


@pytest.mark.parametrize("caller", ["plain", "no certificate", "another authority's certificate"])
@pytest.mark.parametrize("name", GUARDED)
def test_every_service_refuses_whoever_has_no_certificate_of_the_authority(stack, authority, tmp_path, name, caller):
    credentials, ca = None, authority.cert.read_bytes()
    if caller == "no certificate":
        credentials = grpc.ssl_channel_credentials(ca)
    elif caller != "plain":
        other = Authority(tmp_path, "other").certificate("frontend")
        credentials = grpc.ssl_channel_credentials(ca, other.key.read_bytes(), other.cert.read_bytes())

    with pytest.raises(grpc.RpcError) as caught:
        stack.health(name, credentials)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_frontend_without_a_certificate_says_why_it_does_not_serve(stack, authority):
    flags = [*stack.frontend_flags(free_port()), "--ready-timeout-s", "2", "--tls-ca-file", str(authority.cert)]

    process = stack.start("frontend-without", *flags, environment={})

    assert process.wait(TIMEOUT_S) == 1
    log = stack.log_of("frontend-without")
    for name in ("tokenizer", "engine_core"):
        lines = [line for line in log.splitlines() if "channel.not_connected" in line and str(stack.ports[name]) in line]
        assert len([line for line in lines if "does it ask for a certificate" in line]) == 1


@pytest.mark.parametrize("name", ["tokenizer", "worker", "engine_core", "frontend"])
def test_a_health_check_in_the_container_of_a_service_is_let_in(stack, name):
    environment = stack.certificates[name].environment(f"TETRAD_{name.upper()}")
    command = [sys.executable, "-m", "tetrad.readiness", f"127.0.0.1:{stack.ports[name]}", NAMES[name]]

    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=30, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_all_certificates_and_the_authority_change_under_load_and_nothing_is_dropped(stack, authority, tmp_path):
    """First everybody trusts both authorities, then all certificates change, then the first authority goes."""
    new = Authority(tmp_path, "new")
    certificates = {name: new.certificate(name) for name in stack.certificates}
    both = tmp_path / "both.crt"
    both.write_bytes(authority.cert.read_bytes() + new.cert.read_bytes())
    stop, trust = threading.Event(), ssl.create_default_context(cafile=both)

    def ask() -> list[int]:
        codes = []
        while not stop.is_set():
            # A connection each: every request sees the certificate of its moment.
            codes.append(httpx.post(f"{stack.url}/v1/completions", json=BODY, verify=trust, timeout=30).status_code)
        return codes

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            for current in stack.certificates.values():
                current.ca.write_bytes(both.read_bytes())
            for name, current in stack.certificates.items():
                current.cert.write_bytes(certificates[name].cert.read_bytes())
                current.key.write_bytes(certificates[name].key.read_bytes())
            between = {name: stack.serial_at(stack.ports[name], certificates["frontend"]) for name in stack.certificates}
            for current in stack.certificates.values():
                current.ca.write_bytes(new.cert.read_bytes())
            time.sleep(1)  # what is to fail now gets its time
        finally:
            stop.set()
        codes = [code for task in asking for code in task.result()]

    assert set(codes) == {200}
    assert between == {name: certificate.serial for name, certificate in certificates.items()}
    assert stack.serial_at(stack.ports["http"], certificates["frontend"]) == certificates["frontend"].serial
    old = authority.certificate("frontend")
    credentials = grpc.ssl_channel_credentials(both.read_bytes(), old.key.read_bytes(), old.cert.read_bytes())
    for name in GUARDED:
        with pytest.raises(grpc.RpcError):
            stack.health(name, credentials)
