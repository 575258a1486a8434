"""The overlay `tls`: the identities made by docs/kubernetes.md match the names in the manifests."""

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.kubernetes.conftest import runner
from tests.kubernetes.manifests import SETTINGS, container_of, pods_of, settings_of, variables_of
from tests.kubernetes.page import PAGE, applied
from tetrad.services.rpc.server import Server
from tetrad.services.settings import ServiceSettings

CALLS = [
    ("frontend", "tokenizer_targets", "tokenizer"),
    ("frontend", "engine_targets", "engine-core"),
    ("frontend", "engine_admin_targets", "engine-core"),
    ("engine-core", "tokenizer_targets", "tokenizer"),
    ("engine-core", "worker_target", "worker"),
]
"""Who calls whom, by which setting."""


@pytest.fixture(scope="module")
def identities(tmp_path_factory) -> dict[str, Path]:
    """The identities that the page's commands make, as the pods get them: service -> directory."""
    run = runner(tmp_path_factory.mktemp("run"))
    secrets = {each["metadata"]["name"]: each for each in applied(run(PAGE.block("tls.crt"))) if each["kind"] == "Secret"}
    files = tmp_path_factory.mktemp("identities")
    directories = {component: files / component for component in SETTINGS}
    for component, directory in directories.items():
        (volume,) = [each["secret"] for each in pods_of("tls")[component]["volumes"] if "secret" in each]
        directory.mkdir()
        for name, content in secrets[volume["secretName"]]["data"].items():
            (directory / name).write_bytes(base64.b64decode(content))
    return directories


def server_with(identity: Path) -> Server:
    files = {"tls_cert_file": "tls.crt", "tls_key_file": "tls.key", "tls_ca_file": "ca.crt"}
    settings = ServiceSettings(listen="127.0.0.1:0", **{setting: identity / name for setting, name in files.items()})
    return Server(settings, {"tetrad.v1.WorkerService": lambda _: None})


async def test_every_service_is_let_in_under_the_name_by_which_it_is_called(identities):
    """The very handshakes: the caller's identity, the called one's, and the host name of the caller's setting."""
    for caller, setting, called in CALLS:
        targets = getattr(settings_of("tls", caller), setting)
        (target,) = [targets] if isinstance(targets, str) else targets
        host = target.removeprefix("dns:///").partition(":")[0]
        server = server_with(identities[called])
        await server.start()
        try:
            assert await answers(server.address, host, identities[caller])
            assert not await answers(server.address, "elsewhere", identities[caller])
        finally:
            await server.stop()


async def answers(address: str, host: str, identity: Path) -> bool:
    ca, key, cert = [(identity / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
    options = [("grpc.ssl_target_name_override", host)]
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert), options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=5)
        except grpc.aio.AioRpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.parametrize("is_ready", [True, False])
async def test_the_readiness_probe_s_command_shows_the_identity_of_its_pod(identities, is_ready):
    server = server_with(identities["worker"])
    await server.start()
    await server.health.set_ready(is_ready)
    python, *module, _, service = container_of("tls", "worker")["readinessProbe"]["exec"]["command"]
    here = str(identities["worker"])
    variables = {name: value.replace("/etc/tetrad/tls", here) for name, value in variables_of("tls", "worker").items()}

    try:
        ask = [sys.executable, *module, server.address, service]
        ran = await asyncio.to_thread(subprocess.run, ask, env=os.environ | variables, capture_output=True, text=True)
    finally:
        await server.stop()

    assert python == "python"
    assert ran.returncode == (0 if is_ready else 1), ran.stderr
    assert ("does not take work now" in ran.stderr) != is_ready
