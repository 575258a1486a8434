"""Drafts for a model with states on several ranks of a local stack, one of which dies: the tokens are those of one rank.

`make test` splits layers into shards, as states are; tests/tetrad/stack/test_ranks.py has a stack with stages.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.test_states import save_tokenizer
from tests.mtp_files import save_qwen_mtp
from tetrad import EngineArgs, SamplingParams
from tetrad.library.async_llm import AsyncLLM
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.one_process import OneProcessSettings, running

TIMEOUT_S = 90
LIMITS = {"max_model_len": 256, "max_num_batched_tokens": 64}
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


@pytest.fixture(scope="module")
def expected(model) -> list[tuple[int, ...]]:
    """Return the tokens that one rank, in this process and without drafts, brings."""
    worker = {"device": "cpu", "threads": 1, "kv_cache_memory_gib": 0.05}
    settings = OneProcessSettings.of(str(model), "direct", worker=worker, engine_core=LIMITS)

    async def alone() -> list[tuple[int, ...]]:
        async with running(settings, DirectCarrier()) as llm:
            return await answers(llm, "alone")

    return asyncio.run(alone())


@pytest.mark.parametrize(
    ("size", "killed"),
    [
        ("tensor_parallel_size", ["worker-2"]),
        pytest.param("pipeline_parallel_size", ["worker", "worker-2"], marks=pytest.mark.exhaustive),
    ],
)
async def test_a_split_brings_the_tokens_of_one_rank_without_drafts_and_a_lost_rank_costs_no_request(
    model, expected, size, killed
):
    """Fewer blocks than the requests need: some are preempted."""
    options = {size: 2, "speculative_config": MTP, "num_gpu_blocks_override": 30, "kv_cache_memory_gib": 0.05, "threads": 1}
    args = EngineArgs(model=str(model), device="cpu", **LIMITS, **options)
    assert len(set(expected)) == len(expected)

    async with LocalStack(await asyncio.to_thread(args.stack_settings)) as stack:
        await stack.start(timeout_s=TIMEOUT_S)
        async with AsyncLLM.from_target(str(stack.directory)) as llm:
            assert await answers(llm, "first") == expected
            for name in killed:
                again = asyncio.create_task(answers(llm, name))
                await asyncio.sleep(0.2)
                os.kill(stack.pids()[name], signal.SIGKILL)
                assert await again == expected, name
            stats = (await (await llm.start()).engine_admin.loads_known())[0].scheduler

    assert stats.num_draft_tokens > 0
    assert stats.num_preemptions > 0
