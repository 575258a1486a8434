"""A stack that is paused as a whole continues, a service that hangs is replaced, and clocks that differ change nothing."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest

SKEW_S = 30
# Each is shorter than the pause; the real ones are ten times as long.
LIMITS = {
    "TETRAD_ENGINE_CORE_LOOP_STALL_TIMEOUT_S": "4",
    "TETRAD_ENGINE_CORE_STEP_TIMEOUT_S": "4",
    "TETRAD_ENGINE_CORE_RECOVERY_TIMEOUT_S": "6",
    "TETRAD_FRONTEND_LOOP_STALL_TIMEOUT_S": "4",
    "TETRAD_FRONTEND_RECOVERY_TIMEOUT_S": "6",
    "TETRAD_FRONTEND_TOKENIZER_STALL_S": "2",
    "TETRAD_FRONTEND_KEEP_ALIVE_TIMEOUT_S": "5",
    "TETRAD_FRONTEND_HEADER_TIMEOUT_S": "4",
    "TETRAD_TOKENIZER_LOOP_STALL_TIMEOUT_S": "4",
    "TETRAD_WORKER_LOOP_STALL_TIMEOUT_S": "4",
    "TETRAD_WORKER_STUCK_TIMEOUT_S": "4",
}
PAUSE_S = 7
FOUND_WITHIN_S, RESTART_S = 16, 20
"""A service itself is back in 2 s on a quiet machine."""


@pytest.fixture(scope="module")
def stack(start_module_server):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LIMITS.items():
            patch.setenv(name, value)
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.01")
        patch.setenv("CLOCK_SKEW_S", str(SKEW_S))
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("clock_hooks")))
        return start_module_server("--device", "sim", "--log-level", "info", "--tokenizer-pool-size", "1")


def body(number: int, max_tokens: int) -> dict:
    return {"prompt": [1000 + number] * 20, "temperature": 0, "ignore_eos": True, "max_tokens": max_tokens}


async def ask(client: httpx.AsyncClient, number: int, max_tokens: int, **headers: str) -> dict:
    response = await client.post("/v1/completions", json=body(number, max_tokens), headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["usage"]


def test_clocks_that_differ_by_more_than_a_requests_limit_cost_no_request(stack):
    async def run() -> dict:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            return await ask(client, 1, 5, **{"X-Request-Timeout": str(SKEW_S - 10)})

    assert asyncio.run(run())["completion_tokens"] == 5


def test_a_stack_that_was_paused_longer_than_every_limit_goes_on_and_loses_nothing(stack):
    processes = stack.processes()

    async def run() -> list[dict]:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            running = [asyncio.create_task(ask(client, number, 300)) for number in range(4)]
            await asyncio.to_thread(wait_running, stack, 4)
            await ask(client, 100, 1)  # leaves a connection that is kept
            for process in processes:
                process.suspend()
            meanwhile = asyncio.create_task(ask(client, 200, 5))
            await asyncio.sleep(PAUSE_S)
            for process in processes:
                process.resume()
            return await asyncio.gather(*running, meanwhile)

    usages = asyncio.run(run())

    assert [usage["completion_tokens"] for usage in usages] == [300] * 4 + [5]
    assert {process.pid for process in stack.processes()} == {process.pid for process in processes}


def test_an_engine_core_that_stands_still_is_found_within_16_s_and_its_requests_go_on(stack):
    frozen = stack.process_of("engine_core_svc")

    async def run() -> tuple[dict, float]:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            running = asyncio.create_task(ask(client, 1, 300))
            await asyncio.to_thread(wait_running, stack, 1)
            os.kill(frozen.pid, signal.SIGSTOP)
            stopped_at = time.monotonic()
            await asyncio.to_thread(psutil.wait_procs, [frozen], FOUND_WITHIN_S)
            found_s = time.monotonic() - stopped_at
            return await asyncio.wait_for(running, RESTART_S), found_s

    usage, found_s = asyncio.run(run())

    assert found_s < FOUND_WITHIN_S
    assert usage["completion_tokens"] == 300


def wait_running(stack, number: int) -> None:
    deadline = time.monotonic() + 10
    while stack.metric("num_requests_running") < number:
        assert time.monotonic() < deadline
        time.sleep(0.02)
