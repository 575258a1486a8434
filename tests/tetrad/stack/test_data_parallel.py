"""data_parallel_size: several engine cores with their workers in one local stack, over the real services, simulated device."""

import asyncio
import os
import signal

import pytest

from tetrad import EngineArgs, SamplingParams
from tetrad.library.async_llm import AsyncLLM
from tetrad.services.errors import InvalidRequest
from tetrad.services.settings import replaced
from tetrad.stack.local_stack import LocalStack

PARAMS = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=3)


@pytest.fixture
async def stack(smollm2):
    args = EngineArgs(model=str(smollm2), device="sim", max_model_len=512, data_parallel_size=2)
    settings = await asyncio.to_thread(args.stack_settings)

    def slowed(name, settings):
        return replaced(settings, sim_seconds_per_step=0.02) if name.startswith("worker") else settings

    async with LocalStack(settings, adapt=slowed) as stack:
        await stack.start(timeout_s=90)
        yield stack


async def _answers(llm: AsyncLLM, name: str) -> list[tuple[int, ...]]:
    async def one(number: int) -> tuple[int, ...]:
        *_, last = [output async for output in llm.generate(f"Story {number}", PARAMS, f"{name}-{number}")]
        return tuple(last.outputs[0].token_ids)

    async with asyncio.timeout(60):
        return await asyncio.gather(*map(one, range(8)))


async def test_requests_are_spread_and_killed_services_of_one_engine_core_lose_nothing(stack):
    async with AsyncLLM.from_target(str(stack.directory)) as llm:
        frontend = await llm.start()
        assert frontend.num_engines == 2
        undisturbed = await _answers(llm, "undisturbed")

        answering = asyncio.create_task(_answers(llm, "disturbed"))
        await asyncio.sleep(0.2)
        running = [load.scheduler.num_running for load in await frontend.engine_admin.loads_known() if load is not None]
        for name in ("worker-2", "engine-core"):
            os.kill(stack.pids()[name], signal.SIGKILL)
        disturbed = await answering

    assert min(running) >= 2
    assert disturbed == undisturbed
    assert set(stack.pids()) == {"worker", "worker-2", "engine-core", "engine-core-2", "tokenizer"}


def test_a_size_below_one_is_refused_by_its_name():
    with pytest.raises(InvalidRequest, match="data_parallel_size must be between 1 and 64, got 0"):
        EngineArgs(device="sim", data_parallel_size=0)
