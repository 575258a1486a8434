"""A real worker process over a simulated device that dies of a certain prompt, and one that is killed."""

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager, suppress

import pytest

from tests.engine_core_svc.service_fakes import Stack
from tetrad.services.rpc.status import from_status
from tetrad.v1 import types_pb2

POISON = 300
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip


class Supervised:
    """A worker process that is started again whenever it dies."""

    def __init__(self, directory):
        self.directory = directory
        self.num_starts = 0
        self.process = None

    async def run(self):
        command = ("-m", "tetrad.worker_svc", "--device", "sim", "--listen", f"unix:{self.directory}/real")
        flags = ("--sim-crash-token-id", str(POISON), "--sim-seconds-per-step", "0.005", "--log-level", "error")
        while True:
            self.process = await asyncio.create_subprocess_exec(sys.executable, *command, *flags)
            self.num_starts += 1
            await self.process.wait()


@asynccontextmanager
async def real_worker(directory):
    (directory / "config.json").write_text(json.dumps(CONFIG))
    worker = Supervised(directory)
    running = asyncio.create_task(worker.run())
    try:
        async with Stack(directory, worker_target=f"unix:{directory}/real", model=str(directory)) as stack:
            yield worker, stack
    finally:
        running.cancel()
        if worker.process is not None:
            with suppress(ProcessLookupError):
                worker.process.kill()
            await worker.process.wait()


def add(client, handle, prompt, *, max_tokens):
    params = types_pb2.SamplingParams(max_tokens=max_tokens, seed=handle)
    client.add(handle, prompt, sampling_params=params, request_id=f"{prompt[0]}-{handle}-{len(client.tokens)}")


async def run_all(client, handles, *, max_tokens=40):
    for handle in handles:
        add(client, handle, [handle, 5, 6], max_tokens=max_tokens)
    await client.until_finished(*handles)
    return {handle: client.tokens.pop(handle) for handle in handles}


@pytest.fixture
async def worker_and_stack(directory):
    async with real_worker(directory) as found:
        yield found


async def test_one_prompt_fails_as_poisonous_and_everyone_else_gets_the_tokens_of_an_undisturbed_run(worker_and_stack):
    worker, stack = worker_and_stack
    client = await stack.client()
    undisturbed = await run_all(client, range(1, 7))
    client.finished.clear()

    add(client, 99, [POISON, 5], max_tokens=40)
    disturbed = await run_all(client, range(1, 7))
    await client.until_finished(99)

    assert from_status(client.finished[99].status).reason == "POISONOUS_REQUEST"
    assert disturbed == undisturbed
    assert worker.num_starts == 4
    await stack.until_idle()


async def test_a_worker_that_is_killed_or_stopped_costs_no_token(worker_and_stack):
    worker, stack = worker_and_stack
    client = await stack.client()
    undisturbed = await run_all(client, range(1, 7), max_tokens=120)
    client.finished.clear()

    for number, kind in enumerate((signal.SIGKILL, signal.SIGTERM), 1):
        for handle in range(1, 7):
            add(client, handle, [handle, 5, 6], max_tokens=120)
        while not client.tokens.get(6):
            await client.read()
        worker.process.send_signal(kind)
        await client.until_finished(*range(1, 7))

        assert {handle: client.tokens.pop(handle) for handle in range(1, 7)} == undisturbed
        assert client.notices == ["WORKER_LOST", "RECOVERED"] * number
        client.finished.clear()
    assert "good order" in client.notice_texts[2]
