"""A frontend without one of its services is alive and names it; requests are served as soon as all are connected."""

import asyncio
import os
import socket

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.frontend.fakes import TEXT, FakeTokenizer
from tetrad.frontend.api.http.server.server import HttpServer
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.service import serve
from tetrad.services.errors import FailedPrecondition
from tetrad.services.rpc.health import NOT_SERVING, SERVING
from tetrad.v1 import engine_core_pb2

COMPLETION = {"prompt": "hi", "max_tokens": 5}


@pytest.fixture
async def open_frontend(tokenizer, engine, monkeypatch):
    """Start serving, and give a client as soon as HTTP listens, ready or not."""
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    start = HttpServer.start

    async def start_and_tell(self):
        await start(self)
        listening.set_result(self.port)

    monkeypatch.setattr(HttpServer, "start", start_and_tell)
    shutdown, opened = asyncio.Event(), []

    async def open_it(**changes):
        fields = {"tokenizer_targets": (tokenizer.target,), "engine_targets": (engine.target,), "port": 0}
        fields |= {"recovery_timeout_s": 10.0, "drain_timeout_s": 0.1, "responses_store": ":memory:", "model": "m"}
        serving = asyncio.create_task(serve(FrontendSettings(**(fields | changes)), shutdown))
        await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening.result()}", timeout=10)
        opened.extend((serving, client))
        return serving, client

    yield open_it
    shutdown.set()
    for serving, client in zip(opened[::2], opened[1::2], strict=True):
        await client.aclose()
        await asyncio.gather(serving, return_exceptions=True)


async def ready_answer(client, *, status):
    async with asyncio.timeout(10):
        while (answer := await client.get("/health/ready")).status_code != status:  # noqa: ASYNC110 - HTTP tells nobody when it changes
            await asyncio.sleep(0.01)
    return answer


async def test_without_an_engine_it_is_alive_and_says_what_is_missing(open_frontend, engine):
    await engine.kill()

    _, client = await open_frontend()
    live = await client.get("/health/live")
    refused = await client.post("/v1/completions", json=COMPLETION | {"model": "m"})
    missing = await client.get("/health")

    assert live.status_code == 200
    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    assert (missing.status_code, "retry-after" in missing.headers) == (503, True)
    assert missing.json()["status"] == "not ready"
    assert missing.json()["error"]["message"] == missing.json()["problem"]
    assert [each["name"] for each in missing.json()["dependencies"]] == ["tokenizer 0", "engine core 0"]
    assert missing.json()["dependencies"][1] == {"name": "engine core 0", "ready": False, "problem": "not connected"}
    assert "unix:" not in missing.text, "addresses are nobody's business"


async def test_it_serves_as_soon_as_the_engine_is_there(open_frontend, engine):
    await engine.kill()
    _, client = await open_frontend()
    await ready_answer(client, status=503)

    await engine.start()
    answer = await ready_answer(client, status=200)
    done = await client.post("/v1/completions", json=COMPLETION | {"model": "m"})

    assert answer.json()["problem"] == ""
    assert done.json()["choices"][0]["text"] == TEXT[:5]


async def test_grpc_health_follows_the_services_behind(open_frontend, engine, sockets):
    await engine.kill()
    _, client = await open_frontend(listen=f"unix:{sockets}/f")
    async with grpc.aio.insecure_channel(f"unix:{sockets}/f") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="tetrad.v1.InferenceService"), wait_for_ready=True
        )
        states = [(await watch.read()).status]
        for change in (engine.start, engine.kill, engine.start):
            await change()
            states.append((await watch.read()).status)
        watch.cancel()

    assert states == [NOT_SERVING, SERVING, NOT_SERVING, SERVING]
    await ready_answer(client, status=200)


@pytest.mark.parametrize(
    ("kind", "problem"), [("WORKER_LOST", "its worker is lost"), ("STALLED", "its requests make no progress")]
)
async def test_an_engine_that_makes_no_progress_is_a_reason_not_to_be_ready(open_frontend, engine, kind, problem):
    _, client = await open_frontend()
    await ready_answer(client, status=200)

    await engine.tell(f"ENGINE_NOTICE_KIND_{kind}")
    lost = await ready_answer(client, status=503)
    await engine.tell(engine_core_pb2.ENGINE_NOTICE_KIND_RECOVERED)
    await ready_answer(client, status=200)

    assert problem in lost.json()["problem"]


async def test_a_contract_of_another_revision_ends_the_start(open_frontend, engine):
    engine.refusal = FailedPrecondition("unknown schema revision 99")

    serving, _ = await open_frontend()

    with pytest.raises(FailedPrecondition, match="unknown schema revision"):
        await asyncio.wait_for(serving, 10)


async def test_one_of_two_tokenizers_is_enough_and_both_are_counted(open_frontend, tokenizer, sockets):
    second = FakeTokenizer(sockets / "t2")
    _, client = await open_frontend(tokenizer_targets=(tokenizer.target, second.target))

    answer = await ready_answer(client, status=200)
    metrics = (await client.get("/metrics")).text

    assert [each["ready"] for each in answer.json()["dependencies"]] == [True, False, True]
    assert 'num_tokenizers_connected{model_name="m"} 1.0' in metrics
    assert 'num_engines_connected{model_name="m"} 1.0' in metrics


async def test_on_a_port_that_is_held_for_it_a_request_waits_until_it_can_be_served(tokenizer, engine):
    """After a crash clients find the port open, and in a rolling restart both frontends have it: neither may cost an answer."""
    await engine.kill()
    with socket.create_server(("127.0.0.1", 0)) as held:
        shutdown = asyncio.Event()
        targets = {"tokenizer_targets": (tokenizer.target,), "engine_targets": (engine.target,)}
        settings = FrontendSettings(**targets, http_fd=os.dup(held.fileno()), responses_store=":memory:", model="m")
        serving = asyncio.create_task(serve(settings, shutdown))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{held.getsockname()[1]}", timeout=10) as client:
            asking = asyncio.create_task(client.get("/health"))
            done, _ = await asyncio.wait({asking, serving}, timeout=0.2)
            assert not done

            await engine.start()

            assert (await asking).status_code == 200
        shutdown.set()
        await serving
