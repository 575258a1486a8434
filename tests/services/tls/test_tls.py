"""TLS: callers without a certificate of a trusted authority are refused, and certificates change while calls run."""

import asyncio
import contextlib
import ssl
import stat
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from tests.certificates import Authority, Certificate
from tests.services.conftest import NAME, Echo
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.channel import open_channel, problem_of
from tetrad.services.rpc.server import Server
from tetrad.services.settings import ServiceSettings
from tetrad.services.tls.identity import Identity, TlsFiles

TIMEOUT_S = 10


async def _echo(request: bytes) -> bytes:
    return request


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path, "ca")


@pytest.fixture
def other_authority(tmp_path) -> Authority:
    return Authority(tmp_path, "other")


@pytest.fixture
async def serve_tls():
    """Return a starter of Echo servers on a TCP port: certificate -> server."""
    servers = []

    async def start(certificate: Certificate, behavior=_echo, **settings) -> Server:
        register = Echo(behavior).register
        server = Server(ServiceSettings(**certificate.settings, **settings), {NAME: register})
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await asyncio.wait_for(server.stop(), 5)


@pytest.fixture
async def connect():
    """Return an opener of channels: address, TlsFiles or None."""
    channels = []

    def open_one(address: str, tls: TlsFiles | None, server_name: str = "") -> grpc.aio.Channel:
        channels.append(open_channel(address, tls=tls, server_name=server_name))
        return channels[-1]

    yield open_one
    for channel in channels:
        await asyncio.wait_for(channel.close(), 5)


def files(certificate: Certificate) -> TlsFiles:
    return TlsFiles(certificate.cert, certificate.key, certificate.ca)


async def call(channel: grpc.aio.Channel, *, wait_for_ready: bool = False) -> bytes:
    return await channel.unary_unary(f"/{NAME}/Unary")(b"x", timeout=TIMEOUT_S, wait_for_ready=wait_for_ready)


async def until(condition) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - nobody announces what a channel has found out
            await asyncio.sleep(0.01)


async def serial_shown_at(address: str, certificate: Certificate) -> str:
    """Return the serial number of the certificate that a new connection sees."""
    context = ssl.create_default_context(cafile=certificate.ca)
    context.load_cert_chain(certificate.cert, certificate.key)
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    serial = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()
    return serial


async def test_two_services_of_one_authority_speak(authority, serve_tls, connect):
    server = await serve_tls(authority.certificate("server"))

    assert await call(connect(server.address, files(authority.certificate("client")))) == b"x"


@pytest.mark.parametrize("caller", ["plain", "no certificate", "another authority's", "expired"])
async def test_whoever_has_no_good_certificate_is_refused(caller, authority, other_authority, serve_tls, connect):
    server = await serve_tls(authority.certificate("server"))
    other = other_authority.certificate("client")
    tls = {
        "plain": None,
        "no certificate": TlsFiles(ca_file=authority.cert),
        "another authority's": TlsFiles(other.cert, other.key, authority.cert),
        "expired": files(authority.certificate("client", days=-1)),
    }[caller]

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(connect(server.address, tls))

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_of_another_authority_is_refused_and_the_reason_is_said_once(
    authority, other_authority, serve_tls, connect
):
    server = await serve_tls(other_authority.certificate("server"))
    channel = connect(server.address, files(authority.certificate("client")))

    with capture_logs() as logs:
        waiting = asyncio.create_task(call(channel, wait_for_ready=True))
        await until(lambda: problem_of(channel))
        with pytest.raises(grpc.aio.AioRpcError):
            await call(channel)
    waiting.cancel()

    assert "CERTIFICATE_VERIFY_FAILED" in problem_of(channel)
    assert [(line["event"], line["target"]) for line in logs if line["log_level"] == "warning"] == [
        ("channel.not_connected", server.address)
    ]


async def test_a_server_for_another_host_is_refused(authority, serve_tls, connect):
    server = await serve_tls(authority.certificate("server"), listen="0.0.0.0:0")
    address = server.address.replace("0.0.0.0", "127.0.0.2")

    with pytest.raises(grpc.aio.AioRpcError, match="Hostname Verification Check failed"):
        await call(connect(address, files(authority.certificate("client"))))


async def test_an_address_of_a_name_is_checked_against_the_name(authority, serve_tls, connect):
    """The certificate is for localhost; 127.0.0.2 is not in it."""
    server = await serve_tls(authority.certificate("server"), listen="0.0.0.0:0")
    address, own = server.address.replace("0.0.0.0", "ipv4:127.0.0.2"), files(authority.certificate("client"))

    assert await call(connect(address, own, "localhost")) == b"x"
    with pytest.raises(grpc.aio.AioRpcError, match="Hostname Verification Check failed"):
        await call(connect(address, own, "other.example"))


async def test_without_authorities_a_server_asks_callers_for_nothing(authority, connect):
    server_side, echo = authority.certificate("server"), Echo(_echo)
    server = Server(ServiceSettings(tls_cert_file=server_side.cert, tls_key_file=server_side.key), {NAME: echo.register})
    await server.start()

    assert await call(connect(server.address, TlsFiles(ca_file=authority.cert))) == b"x"
    await server.stop()


async def test_all_certificates_and_the_authority_change_while_calls_run(
    tmp_path, authority, other_authority, serve_tls, connect
):
    """First everybody trusts both authorities, then the certificates change, then the first authority goes."""
    go_on = asyncio.Event()

    async def slow_or_fast(request: bytes) -> bytes:
        await go_on.wait()
        return request

    server_files, client_files = (tmp_path / name for name in ("server", "client"))
    for directory in (server_files, client_files):
        directory.mkdir()
    first = authority.certificate("server").copy_to(server_files)
    client = authority.certificate("client").copy_to(client_files)
    server = await serve_tls(first, slow_or_fast)
    channel = connect(server.address, files(client))
    running = asyncio.create_task(call(channel))
    stream = channel.unary_stream(f"/{NAME}/Stream")(b"y", timeout=TIMEOUT_S)
    assert await stream.read() == b"first"

    both = authority.cert.read_bytes() + other_authority.cert.read_bytes()
    for directory in (server_files, client_files):
        (directory / "ca.crt").write_bytes(both)
    second, second_client = other_authority.certificate("server"), other_authority.certificate("client")
    for certificate, directory in ((second, server_files), (second_client, client_files)):
        (directory / "tls.crt").write_bytes(certificate.cert.read_bytes())
        (directory / "tls.key").write_bytes(certificate.key.read_bytes())
    late = asyncio.create_task(call(channel))
    serial_between = await serial_shown_at(server.address, second_client)
    for directory in (server_files, client_files):
        (directory / "ca.crt").write_bytes(other_authority.cert.read_bytes())
    go_on.set()

    assert [await running, await late, await stream.read(), await call(channel)] == [b"x", b"x", b"y", b"x"]
    assert serial_between == second.serial != first.serial
    with pytest.raises(grpc.aio.AioRpcError):
        await call(connect(server.address, files(authority.certificate("client of the first"))))


async def test_new_connections_show_the_new_certificate_of_the_client(tmp_path, authority, serve_tls, connect):
    seen = []

    class Peeking(Echo):
        async def unary(self, request, context):
            seen.append(context.auth_context()["x509_common_name"])
            return request

    certificate = authority.certificate("server")
    server = Server(ServiceSettings(**certificate.settings), {NAME: Peeking(_echo).register})
    await server.start()
    client = authority.certificate("before").copy_to(tmp_path)
    channel = connect(server.address, files(client))

    await call(channel)
    authority.certificate("after").copy_to(tmp_path)
    await call(channel)
    await call(channel)

    assert seen == [[b"before"], [b"after"], [b"after"]]
    await server.stop()


async def test_who_watches_the_state_of_a_channel_learns_of_its_next_connection(tmp_path, authority, serve_tls, connect):
    server = await serve_tls(authority.certificate("server"))
    channel = connect(server.address, files(authority.certificate("client").copy_to(tmp_path)))
    await call(channel)
    watching = asyncio.create_task(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
    await asyncio.sleep(0)

    authority.certificate("client").copy_to(tmp_path)
    await call(channel)

    await asyncio.wait_for(watching, TIMEOUT_S)
    assert channel.get_state() is grpc.ChannelConnectivity.READY


async def test_a_caller_that_waits_with_an_expired_certificate_is_let_in_with_its_next_one(
    tmp_path, authority, serve_tls, connect
):
    server = await serve_tls(authority.certificate("server"))
    client = authority.certificate("client", days=-1).copy_to(tmp_path)
    channel = connect(server.address, files(client))
    waiting = asyncio.create_task(call(channel, wait_for_ready=True))
    stream = channel.stream_stream(f"/{NAME}/Stream")(wait_for_ready=True)
    reading = asyncio.create_task(stream.read())
    writing = asyncio.create_task(channel.stream_stream(f"/{NAME}/Stream")(wait_for_ready=True).write(b"x"))
    await until(lambda: problem_of(channel))

    authority.certificate("client").copy_to(tmp_path)

    for task in (waiting, reading, writing):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(task, TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await call(channel, wait_for_ready=True) == b"x"
    assert problem_of(channel) == ""


async def test_a_cancelled_caller_is_cancelled(authority, other_authority, serve_tls, connect):
    server = await serve_tls(other_authority.certificate("server"))
    waiting = asyncio.create_task(call(connect(server.address, files(authority.certificate("client"))), wait_for_ready=True))
    await asyncio.sleep(0)

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_key_that_does_not_fit_is_refused_at_start(authority):
    one, two = authority.certificate("one"), authority.certificate("two")

    with pytest.raises(InvalidRequest, match="KEY_VALUES_MISMATCH"):
        Identity(TlsFiles(one.cert, two.key))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"gone\.crt.*No such file"):
        Identity(TlsFiles(ca_file=tmp_path / "gone.crt"))


def test_broken_new_files_leave_the_old_identity_and_are_said_once(tmp_path, authority):
    certificate = authority.certificate("one").copy_to(tmp_path)
    identity = Identity(files(certificate))
    before = identity.current()

    with capture_logs() as logs:
        certificate.key.write_text("not a key")
        during = [identity.current(), identity.current()]
        authority.certificate("two").copy_to(tmp_path)
        after = identity.current()

    assert during == [before, before]
    assert after.revision == before.revision + 1
    assert [line["event"] for line in logs] == ["tls.files_not_taken", "tls.files_read_again"]
    assert "not a key" not in str(logs)


def test_files_that_could_not_be_read_are_read_as_soon_as_they_can_be(tmp_path, authority, monkeypatch):
    """A change of a key's owner or mode changes neither its size nor the time of its last change."""
    certificate = authority.certificate("one").copy_to(tmp_path)
    identity = Identity(files(certificate))
    before = identity.current()

    with capture_logs() as logs:
        authority.certificate("two").copy_to(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", _denied)
            during = [identity.current(), identity.current()]
        after = identity.current()

    assert during == [before, before]
    assert after.revision == before.revision + 1
    assert [line["event"] for line in logs] == ["tls.files_not_taken", "tls.files_read_again"]


def _denied(*_):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_caller_of_a_removed_authority_cannot_resume_its_session(tmp_path, authority, other_authority, version):
    """A resumed session asks for no certificate."""
    one, caller = authority.certificate("one"), authority.certificate("caller")
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(authority.cert.read_bytes())
    server = Identity(TlsFiles(one.cert, one.key, trusted)).server_context()
    client = ssl.create_default_context(cafile=authority.cert)
    client.minimum_version = client.maximum_version = version
    client.load_cert_chain(caller.cert, caller.key)

    session = shake_hands(server, client)
    trusted.write_bytes(other_authority.cert.read_bytes() + b"\n")

    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client, session)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSession | None:
    """Connect two ends in memory, and return the client's session."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    for step in (here.do_handshake, there.do_handshake) * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            step()
    there.write(b"hello")
    assert here.read() == b"hello"  # the server may send tickets before
    return here.session


async def test_a_unix_socket_is_plain_and_for_this_user_alone(authority, make_socket, connect, serve_tls):
    address = make_socket("private")
    await serve_tls(authority.certificate("server"), listen=address)

    assert await call(connect(address, None)) == b"x"
    mode = stat.S_IMODE(Path(address.removeprefix("unix:")).stat().st_mode)  # noqa: ASYNC240 - a stat
    assert mode == 0o600


@pytest.mark.parametrize(
    ("listen", "tls", "warned"),
    [("0.0.0.0:0", False, True), ("0.0.0.0:0", True, False), ("127.0.0.1:0", False, False), ("[::1]:0", False, False)],
)
async def test_a_port_that_is_open_to_the_network_is_said_in_one_line(listen, tls, warned, authority):
    settings = authority.certificate("server").settings if tls else {}
    server = Server(ServiceSettings(listen=listen, **settings), {})

    with capture_logs() as logs:
        await server.start()
    await server.stop()

    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["server.open_to_the_network"] * warned


@pytest.mark.parametrize("given", ["tls_cert_file", "tls_key_file"])
def test_a_certificate_and_its_key_go_together(given, authority):
    with pytest.raises(ValueError, match="go together"):
        ServiceSettings(**{given: authority.cert})


async def test_tls_without_a_certificate_to_show_is_no_server(authority):
    with pytest.raises(InvalidRequest, match="tls-cert-file"):
        await Server(ServiceSettings(tls_ca_file=authority.cert), {}).start()
