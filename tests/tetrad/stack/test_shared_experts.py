"""data_parallel_size with enable_expert_parallel in a local stack: each worker has half of the experts; any may die."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.tiny_model import VOCAB_SIZE, save_tokenizer
from tests.worker_svc.families.tiny_models import save_family
from tetrad import LLM, EngineArgs, SamplingParams
from tetrad.library.async_llm import AsyncLLM
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.services.errors import FailedPrecondition
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.one_process import OneProcessSettings, running

PARAMS = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.9, seed=3)
SHARED = {"data_parallel_size": 2, "enable_expert_parallel": True}
TIMEOUT_S = 90


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("mixtral")
    save_family(directory, "mixtral", vocab_size=VOCAB_SIZE)
    save_tokenizer(directory)
    return directory


def args(model: Path, **options: object) -> EngineArgs:
    return EngineArgs(model=str(model), max_model_len=256, kv_cache_memory_gib=0.05, threads=1, **{"device": "cpu", **options})


async def answers(llm: AsyncLLM, name: str, rank: int | None = None) -> list[tuple[int, ...]]:
    """Return the tokens of eight requests, seeded and greedy ones; `rank` is the engine core that gets them all."""

    async def one(number: int) -> tuple[int, ...]:
        params = PARAMS.clone()
        if number % 2:
            params.temperature = 0.0
        stream = llm.generate(f"Story {number}", params, f"{name}-{number}", data_parallel_rank=rank)
        *_, last = [output async for output in stream]
        return tuple(last.outputs[0].token_ids)

    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.gather(*map(one, range(8)))


@pytest.fixture(scope="module")
def expected(model) -> list[tuple[int, ...]]:
    """Return the tokens that one worker, in this process, brings."""
    worker = {"device": "cpu", "threads": 1, "kv_cache_memory_gib": 0.05}
    settings = OneProcessSettings.of(str(model), "direct", worker=worker, engine_core={"max_model_len": 256})

    async def alone() -> list[tuple[int, ...]]:
        async with running(settings, DirectCarrier()) as llm:
            return await answers(llm, "alone")

    return asyncio.run(alone())


async def test_tokens_are_those_of_one_worker_and_a_killed_worker_costs_no_request(model, expected):
    assert len(set(expected)) == len(expected)

    async with LocalStack(await asyncio.to_thread(args(model, **SHARED).stack_settings)) as stack:
        await stack.start(timeout_s=TIMEOUT_S)
        async with AsyncLLM.from_target(str(stack.directory)) as llm:
            for rank in range(2):
                assert await answers(llm, f"beside-an-idle-one-{rank}", rank) == expected
            assert await answers(llm, "spread") == expected
            for name in ("worker", "worker-2"):
                answering = [asyncio.create_task(answers(llm, f"{name}-{rank}", rank)) for rank in (0, None)]
                await asyncio.sleep(0.2)
                os.kill(stack.pids()[name], signal.SIGKILL)
                assert await asyncio.gather(*answering) == [expected] * 2, name


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "sim"}, "data_parallel_size 2: the sim device has all experts on each worker"),
        ({"data_parallel_size": 5}, r"divides 4 experts among 5 ranks \(tensor_parallel_size 1, data_parallel_size 5\)"),
    ],
    ids=["sim", "too many"],
)
def test_what_cannot_share_experts_is_refused_with_one_line(model, options, text):
    given = {"device": "cpu", **SHARED, **options}
    with pytest.raises(FailedPrecondition, match=text):
        LLM(str(model), max_model_len=256, threads=1, **given)
