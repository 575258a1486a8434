"""Many clients at once on the simulated device: nothing is lost, left behind or computed in vain."""

import asyncio
import json
import time

import httpx
import pytest

from benchmarks.grpc_streams import grpc_streams
from benchmarks.soak import steady_streams

MODEL = "smollm2-135m-instruct"


def body(number: int, **fields) -> dict:
    prompt = [1000 + (number * 7919 + i * 31) % 40_000 for i in range(20 + number % 7)]
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "seed": number, "ignore_eos": True, "stream": True} | fields


async def stream(client: httpx.AsyncClient, number: int, **fields) -> tuple[str, int]:
    """Return (text, completion tokens by the usage chunk) of one streamed completion."""
    text, usage = "", 0
    request = body(number, stream_options={"include_usage": True}, **fields)
    async with client.stream("POST", "/v1/completions", json=request) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                text += "".join(choice["text"] for choice in chunk["choices"])
                usage = (chunk.get("usage") or {}).get("completion_tokens", usage)
    return text, usage


def test_64_streams_lose_nothing_and_mix_nothing(sim_server):
    """Each text is the one that the same request gets alone."""

    async def run():
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=sim_server.url, timeout=60, limits=limits) as client:
            together = await asyncio.gather(*(stream(client, number, max_tokens=60) for number in range(64)))
            alone = [await stream(client, number, max_tokens=60) for number in range(0, 64, 8)]
        return together, alone

    together, alone = asyncio.run(run())

    assert all(tokens == 60 for _, tokens in together)
    assert together[::8] == alone
    assert len({text for text, _ in together}) == 64
    sim_server.wait_idle(2)


def test_100_clients_that_leave_in_the_middle_free_their_blocks_within_2_s(sim_server):
    async def leave(client, number):
        async with client.stream("POST", "/v1/completions", json=body(number, max_tokens=8000)) as response:
            async for _ in response.aiter_lines():
                return

    async def run():
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=sim_server.url, timeout=60, limits=limits) as client:
            await asyncio.gather(*(leave(client, number) for number in range(100)))

    asyncio.run(run())

    sim_server.wait_idle(2)


def test_clients_that_leave_before_a_whole_answer_free_their_blocks(sim_server):
    async def leave(client, number):
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json=body(number, max_tokens=8000, stream=False), timeout=0.3)

    async def run():
        async with httpx.AsyncClient(base_url=sim_server.url) as client:
            await asyncio.gather(*(leave(client, number) for number in range(20)))

    asyncio.run(run())

    sim_server.wait_idle(2)


def test_200_clients_for_some_seconds_get_every_token(sim_server):
    """A short soak, over HTTP and the public gRPC API: no error, no token lost, nothing left behind."""

    async def run():
        return await asyncio.gather(
            steady_streams(sim_server.url, clients=190, seconds=2, max_tokens=40),
            grpc_streams(sim_server.grpc_target, clients=10, seconds=2, max_tokens=40),
        )

    over_http, over_grpc = asyncio.run(run())

    assert {(client.status, client.error) for client in over_http} == {(200, "")}
    assert len(over_http) >= 190
    assert not over_grpc.errors
    assert over_grpc.num_calls >= 10
    sim_server.wait_idle(5)


def test_an_idle_stack_sleeps(sim_server):
    """CPU time of all processes together over 4 s is under 2% of one core."""
    sim_server.wait_idle(5)
    processes = sim_server.processes()
    assert len(processes) >= 4

    def cpu_seconds() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before, start = cpu_seconds(), time.monotonic()
    time.sleep(4)

    assert (cpu_seconds() - before) / (time.monotonic() - start) < 0.02
