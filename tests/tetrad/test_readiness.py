"""The health check of containers, over the certificate that its service presents."""

import pytest

from tests.certificates import Authority
from tetrad.readiness import HealthTarget, check_readiness, own_identity
from tetrad.services.rpc.server import Server
from tetrad.services.settings import ServiceSettings

NAME = "tetrad.v1.InferenceService"


@pytest.fixture
def public(tmp_path) -> Authority:
    return Authority(tmp_path, "public")


@pytest.fixture
def private(tmp_path) -> Authority:
    return Authority(tmp_path, "private")


async def is_ready(monkeypatch, variables, **tls) -> bool:
    """Return what the health check finds at a frontend's public port, with the frontend's variables."""
    for name, path in variables.items():
        monkeypatch.setenv(f"TETRAD_FRONTEND_{name}", str(path))
    server = Server(ServiceSettings(listen="127.0.0.1:0", **tls), {NAME: lambda _: None})
    await server.start()
    await server.health.set_ready(True)
    try:
        return await check_readiness(HealthTarget(server.address, NAME), timeout_s=10, tls=own_identity(NAME))
    finally:
        await server.stop()


async def test_a_frontend_with_a_public_certificate_of_its_own_is_found_ready(public, private, monkeypatch):
    own, inner = public.certificate("own"), private.certificate("inner")
    files = {"tls_cert_file": own.cert, "tls_key_file": own.key}
    among_services = {"TLS_CERT_FILE": inner.cert, "TLS_KEY_FILE": inner.key, "TLS_CA_FILE": inner.ca}

    assert await is_ready(monkeypatch, {"SSL_CERTFILE": own.cert, "SSL_KEYFILE": own.key}, **files)
    assert await is_ready(monkeypatch, among_services, **files)


async def test_so_is_one_whose_callers_need_certificates(public, private, monkeypatch):
    own, inner = public.certificate("own"), private.certificate("inner")
    variables = {"SSL_CERTFILE": own.cert, "SSL_KEYFILE": own.key, "SSL_CA_CERTS": inner.ca}
    among_services = {"TLS_CERT_FILE": inner.cert, "TLS_KEY_FILE": inner.key, "TLS_CA_FILE": inner.ca}

    assert await is_ready(
        monkeypatch, variables | among_services, tls_cert_file=own.cert, tls_key_file=own.key, tls_ca_file=inner.ca
    )


async def test_a_frontend_presents_the_certificate_of_the_services_if_it_has_no_other(private, monkeypatch):
    inner = private.certificate("inner")
    among_services = {"TLS_CERT_FILE": inner.cert, "TLS_KEY_FILE": inner.key, "TLS_CA_FILE": inner.ca}

    assert await is_ready(monkeypatch, among_services, **inner.settings)
