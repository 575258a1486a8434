"""The sender of a batch: results, repeated requests, limits, keys, TLS."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from tests.tetrad.cli.batch_lines import REQUEST
from tetrad.cli.batch_file.lines import BadLine, BatchRequest
from tetrad.cli.batch_file.results import may_pass
from tetrad.cli.batch_file.sender import BatchSender
from tetrad.services.errors import Unauthenticated, Unavailable


class Server:
    """Answers with what a test gives, call by call, the last one for ever; counts how many calls are under way."""

    def __init__(self, *answers: Callable[[], httpx.Response]) -> None:
        self._answers = list(answers)
        self.num_calls = self.most_at_once = self._now = 0
        self.key: str | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.num_calls += 1
        self.key = request.headers.get("authorization")
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            return (self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])()
        finally:
            self._now -= 1


def answered(status: int = 200, **headers: str) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(status, json={"answer": 1}, headers={"x-request-id": "r", **headers})


def broken(error: type[httpx.TransportError]) -> Callable[[], httpx.Response]:
    def answer() -> httpx.Response:
        raise error("gone")

    return answer


def sender(server: Server, **options) -> BatchSender:
    options = {"concurrency": 4, "timeout_s": 5.0, **options}
    return BatchSender("http://test/v1/", transport=httpx.MockTransport(server), **options)


async def result_of(server: Server, **options) -> dict:
    results: list[dict] = []
    await sender(server, **options).run(iter([REQUEST]), results.append)
    [result] = results
    return result


@pytest.mark.parametrize("status", [200, 400, 404, 500])
async def test_an_answer_of_any_kind_is_the_result(status):
    result = await result_of(Server(answered(status)))

    assert result["id"].startswith("batch_req_")
    assert result["custom_id"] == "a"
    assert result["response"] == {"status_code": status, "request_id": "r", "body": {"answer": 1}}
    assert result["error"] is None


@pytest.mark.parametrize(
    "first",
    [
        answered(429),
        answered(429, **{"retry-after": "0"}),
        answered(429, **{"retry-after": "nan"}),
        answered(503),
        broken(httpx.ConnectError),
        broken(httpx.ReadError),
    ],
)
async def test_a_server_that_cannot_answer_now_is_asked_again(first):
    server = Server(first, answered())

    result = await result_of(server)

    assert result["response"]["status_code"] == 200
    assert server.num_calls == 2


@pytest.mark.parametrize("answer", [answered(503), broken(httpx.ConnectError)])
async def test_a_server_that_stays_away_ends_the_run_without_results(answer):
    with pytest.raises(Unavailable, match=r"away for 0 s .*run the same command again"):
        await result_of(Server(answer), patience_s=0.0)


async def test_the_time_of_a_request_before_its_first_refusal_is_no_absence_of_the_server():
    server = Server(answered(503), answered())

    result = await result_of(server, patience_s=0.0)

    assert result["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (broken(httpx.ReadTimeout), "request_timeout"),
        (broken(httpx.RemoteProtocolError), "connection_lost"),
        (lambda: httpx.Response(200, text="<html>"), "invalid_response"),
        (lambda: httpx.Response(413, text="<html>"), "invalid_response"),
        (lambda: httpx.Response(200, text="[" * 100_000), "invalid_response"),
        (
            lambda: httpx.Response(200, stream=httpx.ByteStream(b"junk"), headers={"content-encoding": "gzip"}),
            "invalid_response",
        ),
    ],
)
async def test_what_fails_for_one_request_is_its_result(answer, code):
    result = await result_of(Server(answer))

    assert result["response"] is None
    assert result["error"]["code"] == code
    assert result["error"]["line"] == 1


@pytest.mark.parametrize("status", [408, 502, 504])
async def test_a_proxys_page_about_a_failure_that_may_pass_is_such_a_failure(status):
    """Proxies answer these themselves, in HTML, when the server behind them does not."""
    result = await result_of(Server(lambda: httpx.Response(status, text="<html>")))

    assert may_pass(result)
    assert str(status) in result["error"]["message"]


async def test_no_more_requests_are_under_way_than_allowed_and_bad_lines_are_not_sent():
    server = Server(answered())
    lines = [BatchRequest(n, str(n), "/v1/completions", {}) for n in range(1, 31)]
    results: list[dict] = []

    await sender(server, concurrency=3).run(iter([*lines, BadLine(31, None, "invalid_json", "Line 31: no")]), results.append)

    assert server.most_at_once == 3
    assert server.num_calls == 30
    assert {result["custom_id"] for result in results} == {*(str(n) for n in range(1, 31)), None}
    assert [result["error"]["message"] for result in results if result["error"]] == ["Line 31: no"]


async def test_the_key_is_sent_and_a_wrong_one_found_before_anything_is_asked():
    server = Server(answered(401))

    with pytest.raises(Unauthenticated, match="--api-key"):
        await sender(server, api_key="secret").check()

    assert server.key == "Bearer secret"


async def test_a_server_is_trusted_if_its_authority_is(https_server):
    url, authority = https_server
    options = {"concurrency": 1, "timeout_s": 5.0}

    await BatchSender(url, ca_file=authority, **options).check()

    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await BatchSender(url, **options).check()
