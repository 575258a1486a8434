"""HTTP/1.1 on raw sockets, as RFC 9110 and RFC 9112 have it: upgrades, heads, targets, framing, pipelining, Expect, HEAD."""

import pytest

from tests.frontend.api.http.server.echo import Echo, connected, serving

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
WEBSOCKET = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZQ==\r\n"
SEVERAL = "Connection: keep-alive, upgrade\r\nUPGRADE: TLS/1.0, HTTP/2.0\r\n"


@pytest.fixture
async def app():
    return Echo()


@pytest.fixture
async def server(app):
    async with serving(app) as running:
        yield running
        app.gate.set()


@pytest.fixture
async def client(server):
    async with connected(server) as opened:
        yield opened


def get(path="/", headers=""):
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()


def post(body, headers="", path="/"):
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n{body}".encode()


def in_chunks(*chunks, headers="", trailers=""):
    head = f"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{headers}\r\n"
    return (head + "".join(f"{len(each):x};a=b\r\n{each}\r\n" for each in chunks) + f"0\r\n{trailers}\r\n").encode()


def head_of(lines):
    return "\r\n".join([*lines, "", ""]).encode()


# Upgrades: this server speaks no other protocol and ignores them (RFC 9110 7.8).


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET, SEVERAL], ids=["h2c", "websocket", "several"])
@pytest.mark.parametrize("make", [post, in_chunks], ids=["content-length", "chunked"])
async def test_a_request_that_offers_an_upgrade_keeps_its_body_and_its_connection(client, app, upgrade, make):
    client.send(make("the body", headers=upgrade))
    first = await client.answer()
    client.send(make("the next", headers=upgrade))
    second = await client.answer()

    assert [first.status, second.status] == [200, 200]
    assert [each["body"] for each in app.asked] == ["the body", "the next"]
    assert not first.closes


async def test_the_body_behind_an_offered_upgrade_is_never_read_as_a_request(client, app):
    """The 100 Continue shows that the head was parsed before the body was sent."""
    hidden = get("/hidden").decode()
    head, body = post(hidden, headers=H2C + "Expect: 100-continue\r\n").split(b"\r\n\r\n", 1)
    client.send(head + b"\r\n\r\n")
    await client.until(b"100 Continue\r\n\r\n")

    client.send(body)
    answer = await client.answer()
    client.send(get("/last", "Connection: close\r\n"))
    last = await client.answer()

    assert answer.json()["body"] == hidden
    assert (last.json()["path"], await client.rest()) == ("/last", b"")
    assert [each["path"] for each in app.asked] == ["/", "/last"]


async def test_requests_in_a_row_that_all_offer_an_upgrade_are_all_answered(client, app):
    client.send(b"".join([get("/0", H2C), post("one", H2C, "/1"), get("/2", WEBSOCKET), post("three", path="/3")]))

    answers = [(await client.answer()).json() for _ in range(4)]

    assert [(each["path"], each["body"]) for each in answers] == [("/0", ""), ("/1", "one"), ("/2", ""), ("/3", "three")]


# Heads


@pytest.mark.parametrize(
    ("lines", "status", "text"),
    [
        (["GET / HTTP/1.1"], 400, "one Host header, got 0"),
        (["GET / HTTP/1.1", "Host: a", "Host: a"], 400, "one Host header, got 2"),
        (["GET / HTTP/1.0", "Host: a", "Host: b"], 400, "one Host header, got 2"),
        (["GET / HTTP/1.1", "Host: a b"], 400, "'a b'"),
        (["GET / HTTP/1.1", "Host: a/b"], 400, "'a/b'"),
        (["GET / HTTP/1.1", "Host: me@a"], 400, "'me@a'"),
        (["GET / HTTP/1.1", "Host: a, b"], 400, "'a, b'"),
        (["GET / HTTP/2.0", "Host: a"], 505, "HTTP/2.0"),
        (["GET / HTTP/0.9", "Host: a"], 505, "HTTP/0.9"),
        (["GET /"], 505, "HTTP/0.9"),
        (["GET / HTTP/3.0", "Host: a"], 505, "HTTP/1.1 and HTTP/1.0"),
        (["GET / HTTP/1.2", "Host: a"], 505, "HTTP/1.1 and HTTP/1.0"),
        (["GET / HTTP/x", "Host: a"], 400, "Invalid"),
        (["CONNECT a:443 HTTP/1.1", "Host: a:443"], 501, "CONNECT"),
        (["POST / HTTP/1.1", "Host: a", "Transfer-Encoding: gzip, chunked"], 501, "chunked"),
        (["POST / HTTP/1.0", "Host: a", "Transfer-Encoding: chunked"], 400, "HTTP/1.0"),
        (["POST / HTTP/1.1", "Host: a", "Content-Length: 1", "Transfer-Encoding: chunked"], 400, "Invalid"),
        (["POST / HTTP/1.1", "Host: a", "Content-Length: 1", "Content-Length: 2"], 400, "Invalid"),
        (["POST / HTTP/1.1", "Host: a", "Content-Length: +1"], 400, "Invalid"),
        (["GET nowhere HTTP/1.1", "Host: a"], 400, "Invalid"),
        (["GET / HTTP/1.1", "Host: a", " folded: b"], 400, "Invalid"),
        (["GET / HTTP/1.1", "Host : a"], 400, "Invalid"),
    ],
)
async def test_a_head_that_cannot_be_taken_gets_its_status_and_ends_the_connection(client, app, lines, status, text):
    client.send(head_of(lines))

    answer = await client.answer()

    assert (answer.status, answer.closes, app.asked) == (status, True, [])
    assert text in answer.json()["error"]["message"]
    assert await client.rest() == b""


@pytest.mark.parametrize(
    ("lines", "path", "query"),
    [
        (["GET /a?b=c HTTP/1.1", "Host: x"], "/a", "b=c"),
        (["GET http://other:1/a?b=c HTTP/1.1", "Host: x"], "/a", "b=c"),
        (["GET http://other HTTP/1.1", "Host: x"], "/", ""),
        (["GET https://other?b=c HTTP/1.1", "Host: x"], "/", "b=c"),
        (["GET / HTTP/1.1", "Host:"], "/", ""),
        (["GET / HTTP/1.1", "Host: [::1]:8000"], "/", ""),
        (["GET / HTTP/1.1", "Host: engine_core-0.ns.svc:80"], "/", ""),
        (["GET / HTTP/1.0"], "/", ""),
        (["", "GET / HTTP/1.1", "Host: x"], "/", ""),
    ],
)
async def test_every_form_of_a_target_and_of_a_host_is_taken(client, lines, path, query):
    client.send(head_of(lines))

    answer = await client.answer()

    assert (answer.status, answer.json()["path"], answer.json()["query"]) == (200, path, query)


@pytest.mark.parametrize("lines", [["GET / HTTP/1.1", "Host: x", "Connection: close"], ["GET / HTTP/1.0"]])
async def test_a_connection_ends_with_the_answer_to_a_client_that_wants_that(client, lines):
    client.send(head_of(lines))

    answer = await client.answer()

    assert answer.closes
    assert await client.rest() == b""


# Bodies


async def test_trailers_and_chunk_extensions_are_read_and_dropped(client):
    client.send(in_chunks("one ", "two", headers="Trailer: X-Sum\r\n", trailers="X-Sum: 1\r\nHost: other\r\n") + get("/next"))

    answers = [(await client.answer()).json() for _ in range(2)]

    assert (answers[0]["body"], answers[1]["path"]) == ("one two", "/next")
    assert answers[0]["headers"] == ["host", "transfer-encoding", "trailer"]


async def test_a_client_that_waits_for_100_continue_gets_it_before_it_sends_the_body(client):
    client.send(post("body", "Expect: 100-continue\r\n")[:-4])
    await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
    client.send(b"body")

    answer = await client.answer()

    assert (answer.status, answer.json()["body"], answer.closes) == (200, "body", False)


async def test_a_client_of_http_1_0_gets_no_100_continue(client):
    client.send(post("body", "Expect: 100-continue\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"))

    answer = await client.answer()

    assert (answer.status, answer.json()["body"], answer.informational) == (200, "body", [])


async def test_an_answer_before_an_awaited_body_ends_the_connection_so_that_no_request_is_taken_for_the_body(client):
    client.send(post("body", "Expect: 100-continue\r\n", path="/unread")[:-4])

    answer = await client.answer()

    assert (answer.status, answer.informational, answer.closes) == (200, [], True)
    assert await client.rest() == b""


# Pipelining: bytes behind a request never cost it its answer.


@pytest.mark.parametrize("garbage", [b"\x00\x01\x02", b"no request at all\r\n\r\n", get().replace(b"Host: x\r\n", b"")])
async def test_garbage_behind_requests_is_refused_behind_their_answers(client, app, garbage):
    app.gate.clear()
    client.send(post("one") + post("two") + garbage)
    await app.until_asked()
    app.gate.set()

    answers = [await client.answer() for _ in range(3)]

    assert [each.status for each in answers] == [200, 200, 400]
    assert [each["body"] for each in app.asked] == ["one", "two"]
    assert await client.rest() == b""


async def test_a_broken_body_behind_other_requests_is_refused_in_its_turn(client, app):
    app.gate.clear()
    client.send(post("one") + post("two") + in_chunks("xyz").replace(b"3;", b"no size;"))
    await app.until_asked()
    app.gate.set()

    answers = [await client.answer() for _ in range(3)]

    assert [each.status for each in answers] == [200, 200, 400]
    assert [each["body"] for each in app.asked] == ["one", "two"]
    assert await client.rest() == b""


async def test_what_follows_a_request_that_closes_its_connection_is_ignored(client, app):
    client.send(post("one", "Connection: close\r\n") + b"\x00 garbage")

    answer = await client.answer()

    assert (answer.json()["body"], answer.closes, await client.rest()) == ("one", True, b"")


async def test_more_requests_in_a_row_than_may_wait_are_refused_behind_the_answers_to_those_that_may(client, app):
    app.gate.clear()
    client.send(get() * 30)
    await app.until_asked()
    app.gate.set()

    answers = [await client.answer() for _ in range(18)]

    assert [each.status for each in answers] == [200] * 17 + [400]
    assert "at most 16 requests" in answers[-1].json()["error"]["message"]
    assert await client.rest() == b""


# Methods


async def test_head_is_answered_as_get_without_the_body(client):
    client.send(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await client.answer(to_head=True)
    client.send(get("/a"))
    got = await client.answer()

    assert (head.status, head.headers) == (200, got.headers)


async def test_options_of_the_whole_server_is_answered_with_its_methods(client, app):
    client.send(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")

    answer = await client.answer()

    assert (answer.status, app.asked) == (204, [])
    assert {"get", "head", "post", "delete", "options"} == set(answer.headers["allow"].split(", "))
