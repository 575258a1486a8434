"""WebFiles: fetches images only from hosts that the operator allows, and only from public addresses."""

import asyncio
import socket
import threading

import pytest

from tests.frontend.media.web_server import answer
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.loader import MediaLoader
from tetrad.services.errors import InvalidRequest, Overloaded


async def test_a_file_of_an_allowed_host_is_fetched(web, load_web):
    web.answers["/a.png?x=1"] = answer(b"the file")

    item = await load_web(web.url("/a.png?x=1"))

    assert (item.data, item.media_type) == (b"the file", "image/png")
    assert web.requests[0].startswith(f"GET /a.png?x=1 HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\nUser-Agent: tetrad/")


@pytest.mark.parametrize(
    "raw",
    [
        answer(b"7\r\nthe fil\r\n1\r\ne\r\n0\r\n\r\n", transfer_encoding="chunked", content_length=None),
        answer(b"the file", content_length=None),
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + answer(b"the file"),
    ],
    ids=["chunked", "until the end", "after early hints"],
)
async def test_all_forms_of_a_body_are_read(web, load_web, raw):
    web.answers["/a.png"] = raw

    assert (await load_web(web.url())).data == b"the file"


async def test_without_allowed_domains_no_url_is_fetched(web, load):
    with pytest.raises(InvalidRequest, match=r"allowed domains: \[\]\. Input URL domain: 127.0.0.1\. Set `--allowed-media"):
        await load(web.url())

    assert web.requests == []


async def test_another_host_is_refused_by_its_name(web, load_web):
    with pytest.raises(InvalidRequest, match=r"allowed domains: \['a.example'\]\. Input URL domain: 127.0.0.1\."):
        await load_web(web.url(), allowed_media_domains=("a.example",))

    assert web.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"])
async def test_all_public_hosts_are_no_private_ones(web, load, host):
    with pytest.raises(InvalidRequest, match=r"has no (public )?address"):
        await load(web.url(host=host), allowed_media_domains=("*",))

    assert web.requests == []


async def test_the_connection_goes_to_the_checked_address(web, load_web, monkeypatch):
    """A second lookup would find another address: DNS rebinding."""
    lookups = []

    def getaddrinfo(host, port, *rest, **options):
        lookups.append(host)
        address = "127.0.0.1" if len(lookups) == 1 else "10.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    web.answers["/a.png"] = answer(b"the file")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    item = await load_web(web.url(host="images.example"), allowed_media_domains=("images.example",))

    assert item.data == b"the file"
    assert lookups[0] == "images.example"
    assert "10.0.0.1" not in lookups


async def test_slow_names_do_not_delay_the_event_loop_s_threads(load, monkeypatch):
    """The event loop has at most 32 threads for all other work."""
    answered, asked, loop = threading.Event(), asyncio.Queue(), asyncio.get_running_loop()

    def getaddrinfo(name, *_, **__):
        loop.call_soon_threadsafe(asked.put_nowait, name)
        answered.wait(30)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    loader = MediaLoader(FrontendSettings(allowed_media_domains=("*",), max_media_fetches=40))
    sources = [MediaSource(where="here", url=f"http://slow{number}.example/") for number in range(40)]
    fetching = asyncio.create_task(loader.load(sources))
    try:
        async with asyncio.timeout(20):
            names = {await asked.get() for _ in sources}
            await asyncio.to_thread(int)
    finally:
        answered.set()

    with pytest.raises(InvalidRequest, match="the host has no address"):
        await fetching
    loader.close()
    assert len(names) == 40


class TestRedirects:
    async def test_are_not_followed_by_default(self, web, load_web):
        web.answers["/a.png"] = answer(b"", "302 Found", location="/b.png")

        with pytest.raises(InvalidRequest, match=r"it redirects; at most 0 redirects are followed \(max_media_redirects\)"):
            await load_web(web.url())

        assert len(web.requests) == 1

    async def test_are_followed_up_to_the_limit(self, web, load_web):
        web.answers["/a.png"] = answer(b"", "302 Found", location="/b.png")
        web.answers["/b.png"] = answer(b"", "307 Temporary Redirect", location=web.url("/c.png"))
        web.answers["/c.png"] = answer(b"the file")

        assert (await load_web(web.url(), max_media_redirects=2)).data == b"the file"
        with pytest.raises(InvalidRequest, match="at most 1 redirects"):
            await load_web(web.url(), max_media_redirects=1)

    @pytest.mark.parametrize(
        ("location", "text"),
        [
            ("http://169.254.169.254/latest/meta-data", "has no public address"),
            ("http://[fd00:ec2::254]/", "has no public address"),
            ("file:///etc/passwd", "must be either a HTTP, data or file URL"),
            ("gopher://127.0.0.1/", "must be either a HTTP, data or file URL"),
        ],
    )
    async def test_are_checked_like_the_url_itself(self, web, load_web, location, text):
        web.answers["/a.png"] = answer(b"", "302 Found", location=location)

        with pytest.raises(InvalidRequest, match=text):
            await load_web(web.url(), max_media_redirects=5, allowed_media_domains=("*",))

    async def test_lead_to_allowed_hosts_only(self, web, load_web):
        web.answers["/a.png"] = answer(b"", "302 Found", location=web.url("/b.png", host="localhost"))

        with pytest.raises(InvalidRequest, match="Input URL domain: localhost"):
            await load_web(web.url(), max_media_redirects=1, allowed_media_domains=("127.0.0.1",))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (answer(b"no", "404 Not Found"), "the server answered with status 404"),
        (answer(b"no", "500 Oops"), "the server answered with status 500"),
        (answer(b""), "it is empty"),
        (answer(b"x" * 2000), r"it has (2000|more than 1024) bytes.* \(max_media_bytes\)"),
        (answer(b"x" * 2000, content_length=None), r"it has more than 1024 bytes, the limit \(max_media_bytes\)"),
        (answer(b"x", content_length="5"), "the connection was closed before its end"),
        (answer(b"5\r\nx", transfer_encoding="chunked", content_length=None), "the connection was closed before its end"),
        (answer(b"x", content_encoding="gzip"), "it is encoded as 'gzip'"),
        (answer(b"x", x_long="y" * 200_000), "it is no HTTP|its headers have more than 65536 bytes"),
        (
            answer(b"1\r\nx\r\n0\r\n" + b"y: " + b"y" * 200_000, transfer_encoding="chunked", content_length=None),
            "its headers have more than 65536 bytes",
        ),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "it is no HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "it is no HTTP|closed before"),
        (b"", "the connection was closed before its end"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_refused_with_its_reason(web, load_web, raw, text):
    web.answers["/a.png"] = raw

    with pytest.raises(InvalidRequest, match=text) as refused:
        await load_web(web.url(), max_media_bytes=1024)

    assert refused.value.field == "here"


async def test_a_signature_in_a_url_is_not_shown(web, load_web):
    with pytest.raises(InvalidRequest, match=r"/a.png: the server answered with status 404\.$"):
        await load_web(web.url("/a.png?token=secret"))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://a.example/x", "must be either a HTTP, data or file URL"),
        ("x", "must be either a HTTP, data or file URL"),
        ("http://", "the URL has no host"),
        ("http://user:pass@127.0.0.1/x", "no user, no password"),
        ("http://127.0.0.1:99999/x", "is wrong: Port out of range"),
        ("http://127.0.0.1:0/x", "no port 0"),
        ("http://127.0.0.1\\@a.example/x", "printable ASCII characters only"),
        ("http://127.0.0.1/x\r\nHost: b", "printable ASCII characters only"),
        ("http://127.0.0.1/" + "x" * 9000, "has 9017 characters; at most 8192 are taken"),
        ("http://[::1/x", "is wrong"),
    ],
)
async def test_a_wrong_url_is_refused(load_web, url, text):
    with pytest.raises(InvalidRequest, match=text):
        await load_web(url, allowed_media_domains=("*",))


async def test_a_lost_server_is_an_error_of_the_request(load_web):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(InvalidRequest, match=r"no connection \(Connection refused\)"):
            await load_web(f"http://127.0.0.1:{taken.getsockname()[1]}/a.png")


async def test_a_server_that_is_no_https_server_is_refused(web, load_web):
    with pytest.raises(InvalidRequest, match="no connection"):
        await load_web(web.url().replace("http:", "https:"))


async def test_a_slow_server_is_given_up(web, load_web):
    web.hung.clear()

    with pytest.raises(InvalidRequest, match=r"within 0.1 s \(media_fetch_timeout_s\)"):
        await load_web(web.url(), media_fetch_timeout_s=0.1)


async def test_fetches_beyond_the_limit_wait_and_are_refused_in_the_end(web):
    web.hung.clear()
    fields = {"allowed_media_domains": ("*",), "allowed_media_networks": ("127.0.0.0/8",)}
    loader = MediaLoader(FrontendSettings(**fields, max_media_fetches=1, media_fetch_timeout_s=0.2))
    source = MediaSource(where="here", url=web.url())

    results = await asyncio.gather(loader.load([source]), loader.load([source]), return_exceptions=True)
    web.hung.set()
    web.answers["/a.png"] = answer(b"the file")

    assert {type(result) for result in results} <= {InvalidRequest, Overloaded}
    assert (await loader.load([source]))[0].data == b"the file"
