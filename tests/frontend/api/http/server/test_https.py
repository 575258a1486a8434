"""HTTPS: certificates of the public ports, client certificates, and rotation."""

import ssl

import httpx
import pytest

from tests.certificates import Authority, Certificate
from tetrad.frontend.config import FrontendSettings


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path, "ca")


def context_of(certificate: Certificate, *, show: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate.ca)
    if show:
        context.load_cert_chain(certificate.cert, certificate.key)
    return context


async def version(port: int, context: ssl.SSLContext) -> int:
    async with httpx.AsyncClient(verify=context, timeout=10) as client:
        response = await client.get(f"https://localhost:{port}/version")
        return response.status_code


@pytest.mark.parametrize("asked", [False, True])
async def test_callers_show_a_certificate_if_authorities_are_given(asked, authority, serve_frontend):
    server, caller = authority.certificate("server"), authority.certificate("caller")
    settings = {"ssl_certfile": server.cert, "ssl_keyfile": server.key, "ssl_ca_certs": authority.cert if asked else None}

    async with serve_frontend(**settings) as frontend:
        port = frontend.http.base_url.port
        assert await version(port, context_of(caller, show=True)) == 200
        if asked:
            with pytest.raises(httpx.TransportError):
                await version(port, context_of(caller, show=False))
        else:
            assert await version(port, context_of(caller, show=False)) == 200


async def test_the_authority_of_callers_changes_while_it_serves(tmp_path, authority, serve_frontend):
    other = Authority(tmp_path, "other")
    (tmp_path / "now").mkdir()
    server = authority.certificate("server").copy_to(tmp_path / "now")
    settings = {"ssl_certfile": server.cert, "ssl_keyfile": server.key, "ssl_ca_certs": server.ca}
    old, new = (context_of(signer.certificate("caller"), show=True) for signer in (authority, other))

    async with serve_frontend(**settings) as frontend:
        port = frontend.http.base_url.port
        before = await version(port, old)
        other.certificate("server").copy_to(tmp_path / "now")

        assert (before, await version(port, new)) == (200, 200)
        with pytest.raises(httpx.TransportError):
            await version(port, old)


@pytest.mark.parametrize("version_name", ["TLSv1", "TLSv1_1"])
async def test_old_versions_of_tls_are_refused(version_name, authority, serve_frontend):
    server = authority.certificate("server")
    context = context_of(server, show=False)
    with pytest.warns(DeprecationWarning):
        context.minimum_version = getattr(ssl.TLSVersion, version_name)
        context.maximum_version = getattr(ssl.TLSVersion, version_name)

    async with serve_frontend(ssl_certfile=server.cert, ssl_keyfile=server.key) as frontend:
        with pytest.raises(httpx.TransportError):
            await version(frontend.http.base_url.port, context)


@pytest.mark.parametrize("fields", [{"ssl_certfile": "x"}, {"ssl_keyfile": "x"}, {"ssl_ca_certs": "x"}])
def test_half_an_identity_is_refused(fields):
    with pytest.raises(ValueError, match="ssl-certfile"):
        FrontendSettings(**fields)


def test_the_identity_among_services_is_shown_to_callers_too_where_there_is_no_other(authority):
    one, two = authority.certificate("one"), authority.certificate("two")
    own = {"ssl_certfile": two.cert, "ssl_keyfile": two.key}

    assert FrontendSettings().public_tls is None
    assert FrontendSettings(**one.settings).public_tls.cert_file == one.cert
    assert FrontendSettings(**one.settings).public_tls.ca_file is None
    assert FrontendSettings(**one.settings, **own).public_tls.cert_file == two.cert
