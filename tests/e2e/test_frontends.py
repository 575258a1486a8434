"""Several frontends on one port (--api-server-count): one set of metrics, limits and responses, succession and end for all."""

import asyncio
import contextlib
import re
import signal

import httpx
import psutil
import pytest

from tests.e2e.test_rolling_restart import DEADLINE_S, NUM_CLIENTS, Load, called, open_grpc, services, wait_said, whole
from tests.e2e.test_rolling_restart import streamed as stream

PLACES = 4
BODY = {"model": "smollm2-135m-instruct", "prompt": "Count the waves", "ignore_eos": True}


@pytest.fixture(scope="module")
def server(start_module_server, monkeypatch_module):
    monkeypatch_module.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.002")
    return start_module_server(
        "--device", "sim", "--api-server-count", "2", "--max-num-requests", str(PLACES * 10), "--max-model-len", "8192"
    )


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def _get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=DEADLINE_S)


def _post(url: str, body: dict) -> httpx.Response:
    return httpx.post(url, json=body, timeout=DEADLINE_S)


def frontends(server) -> set[int]:
    return services(server).get("tetrad.frontend", set())


@contextlib.asynccontextmanager
async def open_streams(server, number: int, outputs: int):
    """Hold so many streams open, each on its own connection, and give their statuses."""
    async with contextlib.AsyncExitStack() as exits:
        answers = []
        for _ in range(number):
            client = await exits.enter_async_context(httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S))
            body = BODY | {"stream": True, "n": outputs, "max_tokens": 4000}
            answers.append(await exits.enter_async_context(client.stream("POST", "/v1/completions", json=body)))
        yield [answer.status_code for answer in answers]


def labels(page: str, name: str) -> set[str]:
    """Return the frontends that have a metric."""
    return set(re.findall(rf'^tetrad:{name}{{frontend="(\d+)"', page, re.MULTILINE))


async def test_both_answer_and_one_page_has_the_metrics_of_both(server):
    assert len(frontends(server)) == 2
    page, taken = "", set()
    for _ in range(50):  # who accepts a connection is the system's choice
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(_ask_anew(server, number))
        page = _get(f"{server.url}/metrics").text
        taken = labels(page, "http_requests_total")
        if len(taken) == 2:
            break

    assert len(taken) == 2
    assert len(labels(page, "requests_unfinished")) == 2
    assert page.count("# TYPE tetrad:requests_unfinished gauge") == 1
    assert server.metric("generation_tokens_total") >= 8 * 24


async def _ask_anew(server, number: int) -> str:
    async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S) as client:
        return await whole(client, number)


async def test_the_limit_on_requests_holds_for_both_together(server):
    """Ten outputs each: the streams fill the limit, whichever frontends have them; no connection finds a place."""
    async with open_streams(server, PLACES, 10) as statuses:
        assert statuses == [200] * PLACES
        load = _get(f"{server.url}/load").json()["server_load"]
        refused = [_post(f"{server.url}/v1/completions", BODY | {"max_tokens": 1}) for _ in range(8)]

    assert load >= PLACES
    assert {answer.status_code for answer in refused} == {429}
    assert f"{PLACES * 10} unfinished requests" in refused[0].json()["error"]["message"]
    async with asyncio.timeout(DEADLINE_S):
        while _get(f"{server.url}/load").json()["server_load"]:  # noqa: ASYNC110 - a server announces no change of its load
            await asyncio.sleep(0.05)


async def test_a_response_is_known_to_whoever_is_asked_next(server):
    url, fields = f"{server.url}/v1/responses", {"model": BODY["model"], "max_output_tokens": 4}
    first = _post(url, fields | {"input": "Name the capital of France."}).json()

    answers = [_get(f"{url}/{first['id']}") for _ in range(8)]
    continued = [_post(url, fields | {"input": "More", "previous_response_id": first["id"]}) for _ in range(4)]

    assert {answer.status_code for answer in answers + continued} == {200}


async def test_a_killed_one_is_replaced_while_the_other_answers(server):
    before = frontends(server)
    victim = min(before)

    psutil.Process(victim).kill()
    async with asyncio.timeout(DEADLINE_S):
        while victim in (now := frontends(server)) or len(now) < 2:
            await _ask_anew(server, 1)

    assert len(now - before) == 1


async def test_a_rolling_restart_replaces_both_and_fails_no_request(server):
    before = frontends(server)
    async with httpx.AsyncClient(base_url=server.url) as client:
        undisturbed = [await whole(client, number) for number in range(NUM_CLIENTS)]
    async with open_grpc(server) as channel:
        undisturbed.append(await called(channel, NUM_CLIENTS))
    load = Load(server)

    async with asyncio.timeout(2 * DEADLINE_S), asyncio.TaskGroup() as group:
        for number in range(NUM_CLIENTS):
            group.create_task(load.run(whole if number % 2 else stream, number))
        group.create_task(load.run_grpc(NUM_CLIENTS, calls_a_channel=10))
        server.process.send_signal(signal.SIGHUP)
        await wait_said(server, "Every service was restarted")
        load.stop()

    assert {(number, undisturbed[number]) for number in range(NUM_CLIENTS + 1)} >= set(load.answers)
    assert len(frontends(server) - before) == 2


async def test_the_end_is_that_of_both(server):
    pids = frontends(server)

    server.process.terminate()

    assert server.process.wait(10) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)
