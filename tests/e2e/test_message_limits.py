"""Requests that together exceed a message between engine core and worker: real processes, real messages."""

import asyncio
import os
import signal
import time

import httpx
import pytest

MODEL = "smollm2-135m-instruct"
MIB = 1 << 20


def body(number: int, **fields) -> dict:
    prompt = [1000 + (number * 7919 + i * 31) % 40_000 for i in range(20)]
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "seed": number, "ignore_eos": True} | fields


async def answers(url: str, bodies: list[dict], while_they_run=lambda: None) -> list[httpx.Response]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        tasks = [asyncio.create_task(client.post("/v1/completions", json=each)) for each in bodies]
        await asyncio.to_thread(while_they_run)
        assert not any(task.done() for task in tasks), "they were over before"
        return await asyncio.gather(*tasks)


@pytest.fixture(scope="module")
def small_messages(start_module_server):
    """A worker that reads messages of 1 MiB, and steps that take time: a kill must come in the midst of the requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.002")
        patch.setenv("TETRAD_WORKER_MAX_MESSAGE_BYTES", str(MIB))
        flags = ("--max-model-len", "4096", "--tokenizer-pool-size", "1", "--log-level", "info")
        return start_module_server("--device", "sim", *flags)


def test_requests_whose_parameters_fit_no_message_together_are_resumed_when_the_worker_was_lost(small_messages):
    bias = {str(token_id): 1.0 for token_id in range(7_000)}
    bodies = [body(number, max_tokens=600, logit_bias=bias | {str(number): 2.0}) for number in range(24)]
    assert len(bodies) * len(bias) * 10 > MIB
    worker = small_messages.process_of("worker_svc")

    def kill_when_all_run():
        deadline = time.monotonic() + 30
        while small_messages.metric("num_requests_running") < len(bodies):
            assert time.monotonic() < deadline, "they never ran together"
            time.sleep(0.005)
        os.kill(worker.pid, signal.SIGKILL)

    disturbed = asyncio.run(answers(small_messages.url, bodies, kill_when_all_run))

    undisturbed = asyncio.run(answers(small_messages.url, bodies))
    assert {response.status_code for response in disturbed} == {200}
    assert [response.json()["choices"] for response in disturbed] == [response.json()["choices"] for response in undisturbed]
    assert small_messages.output().count('"worker.lost"') == 1
    small_messages.wait_idle(10)
