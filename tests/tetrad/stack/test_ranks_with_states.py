"""Drafts for a model with states on several ranks of a local stack, one of which dies: the tokens are those of one rank."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_states import save_tokenizer
from tests.mtp_files import save_qwen_mtp
from tetrad import EngineArgs, SamplingParams
from tetrad.library.async_llm import AsyncLLM
from tetrad.stack.local_stack import LocalStack

TIMEOUT_S = 90
SEEDED = SamplingParams(max_tokens=50, ignore_eos=True, temperature=0.9, seed=3)
MTP = {"method": "mtp", "num_speculative_tokens": 3}
"""Its steps are tried before they are judged, so some are verified on every machine."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("states")
    save_qwen_mtp(directory, "qwen3_next")
    save_tokenizer(directory)
    return directory


async def answers(llm: AsyncLLM, name: str) -> list[tuple[int, ...]]:
    """Return the tokens of six requests, every other one greedy."""

    async def one(number: int) -> tuple[int, ...]:
        params = SEEDED.clone()
        if number % 2:
            params.temperature = 0.0
        prompt = {"prompt_token_ids": [*range(20 + number, 50 + 5 * number), *range(30, 40)]}
        *_, last = [output async for output in llm.generate(prompt, params, f"{name}-{number}")]
        return tuple(last.outputs[0].token_ids)

    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.gather(*map(one, range(6)))


async def run(model: Path, killed: tuple[str, ...] = (), **options: Any) -> tuple[list[tuple[int, ...]], int, int]:
    """Return the answers, and the numbers of draft tokens and of preemptions; kill processes under load, and compare."""
    limits = {"max_model_len": 256, "max_num_batched_tokens": 64, "kv_cache_memory_gib": 0.05, "threads": 1}
    args = EngineArgs(model=str(model), device="cpu", **limits, **options)
    async with LocalStack(await asyncio.to_thread(args.stack_settings)) as stack:
        await stack.start(timeout_s=TIMEOUT_S)
        async with AsyncLLM.from_target(str(stack.directory)) as llm:
            found = await answers(llm, "first")
            for name in killed:
                again = asyncio.create_task(answers(llm, name))
                await asyncio.sleep(0.2)
                os.kill(stack.pids()[name], signal.SIGKILL)
                assert await again == found, name
            stats = (await (await llm.start()).engine_admin.loads_known())[0].scheduler
            return found, stats.num_draft_tokens, stats.num_preemptions


async def test_every_split_brings_the_tokens_of_one_rank_without_drafts_and_a_lost_rank_costs_no_request(model):
    """Fewer blocks than the requests need: some are preempted."""
    expected, *_ = await run(model)
    assert len(set(expected)) == len(expected)

    for size, killed in (("tensor_parallel_size", ("worker-2",)), ("pipeline_parallel_size", ("worker", "worker-2"))):
        options = {size: 2, "speculative_config": MTP, "num_gpu_blocks_override": 30}
        found, num_drafts, num_preemptions = await run(model, killed, **options)
        assert found == expected, size
        assert num_drafts > 0
        assert num_preemptions > 0
