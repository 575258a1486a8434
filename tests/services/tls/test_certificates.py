"""The expiry of certificates is in the metrics, and in the log once when it is near."""

import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from tests.certificates import Authority, Certificate
from tetrad.services.observability.metrics import PROCESS
from tetrad.services.rpc.channel import open_channel
from tetrad.services.tls.certificates import chain_ends
from tetrad.services.tls.identity import Identity, TlsFiles


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path, "ca")


def files(certificate: Certificate) -> TlsFiles:
    return TlsFiles(certificate.cert, certificate.key, certificate.ca)


def warnings(logs: list) -> list[tuple[str, int]]:
    return [(line["file"], line["days_left"]) for line in logs if line["event"] == "tls.certificate_ends_soon"]


def exported(certificate: Certificate) -> float | None:
    labels = {"file": certificate.cert.name}
    return PROCESS.get_sample_value("tetrad:tls_certificate_expiry_timestamp_seconds", labels)


@pytest.mark.parametrize("days", [-1, 7, 20_000], ids=["over", "two digits of the year", "four digits"])
def test_the_end_is_what_openssl_says(authority, days):
    certificate = authority.certificate("one", days=days)
    command = ["openssl", "x509", "-enddate", "-noout", "-in", certificate.cert]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    ends = datetime.fromtimestamp(chain_ends(certificate.cert.read_text()), UTC)

    assert f"{ends:notAfter=%b {ends.day:2d} %H:%M:%S %Y GMT}\n" == said


def test_a_chain_ends_with_the_first_of_its_certificates(authority):
    soon, late = (authority.certificate("one", days=days).cert.read_text() for days in (5, 50))

    assert chain_ends(f"{late}\nsome words\n{soon}") == chain_ends(soon) < chain_ends(late)
    assert chain_ends("no certificate") is None


async def test_one_that_ends_soon_is_told_once_whoever_shows_it(authority):
    certificate = authority.certificate("one", days=10)

    with capture_logs() as logs:
        Identity(files(certificate)).server_credentials()
        Identity(files(certificate)).server_context()
        async with open_channel("127.0.0.1:1", tls=files(certificate)) as channel:
            channel.get_state()

    assert warnings(logs) == [(str(certificate.cert), 9)]


def test_one_that_lasts_is_not_told(authority):
    with capture_logs() as logs:
        Identity(files(authority.certificate("one", days=31))).server_credentials()

    assert warnings(logs) == []


def test_one_that_follows_is_looked_at_too(authority):
    certificate, next_one = authority.certificate("one", days=90), authority.certificate("two", days=3)
    identity = Identity(files(certificate))
    identity.server_credentials()
    before = exported(certificate)

    with capture_logs() as logs:
        certificate.cert.write_bytes(next_one.cert.read_bytes())
        certificate.key.write_bytes(next_one.key.read_bytes())
        identity.current()

    assert warnings(logs) == [(str(certificate.cert), 2)]
    assert timedelta(seconds=before - exported(certificate)).days in (86, 87)
