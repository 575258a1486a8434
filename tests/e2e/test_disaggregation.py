"""Disaggregated prefill on a local stack of real processes: tokens are those of one engine core, also while services die.

The same prompt with skip_reading_prefix_cache is computed and continued by one engine core: it gives the tokens to expect.
The tests share the processes; each has a frontend of its own, which counts from 0.
"""

import asyncio
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import save_lora
from tetrad import EngineArgs, LoRARequest, SamplingParams
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.sampling_params import RequestOutputKind
from tetrad.stack.local_stack import LocalStack

_COMMON = {"max_tokens": 24, "ignore_eos": True, "detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
GREEDY = SamplingParams(temperature=0.0, **_COMMON)
SEEDED = SamplingParams(temperature=1.0, seed=5, logprobs=1, **_COMMON)
_numbers = itertools.count()
pytestmark = pytest.mark.asyncio(loop_scope="module")


class Stack:
    """A stack with one engine core that generates and one that computes prompts, and a frontend in this process."""

    def __init__(self, local: LocalStack, llm: AsyncLLM) -> None:
        self.local, self.llm = local, llm
        self.num_external_tokens = 0
        processor = llm.backends.processor
        process = processor.process

        async def counting(step):
            self.num_external_tokens += sum(rich.num_external_tokens for _, _, rich in step.updates if rich is not None)
            await process(step)

        processor.process = counting

    def num_prefills(self, outcome: str) -> float:
        page = self.llm.metrics.render().decode()
        lines = [line for line in page.splitlines() if "remote_prefills_total" in line and f'"{outcome}"' in line]
        return float(lines[0].rpartition(" ")[2])

    async def tokens(self, prompt: list[int], params: SamplingParams, **options: object) -> list[list[int]]:
        given = {"prompt_token_ids": prompt}
        *_, last = [output async for output in self.llm.generate(given, params, f"r{next(_numbers)}", **options)]
        return [output.token_ids for output in last.outputs]

    async def expected(self, prompt: list[int], params: SamplingParams, **options: object) -> list[list[int]]:
        """Return the tokens of one engine core that computes all of the request; it caches nothing for others."""
        return await self.tokens(prompt, replace(params, skip_reading_prefix_cache=True), cache_salt="expected", **options)

    @property
    def num_open_prefills(self) -> int:
        """The number of requests whose prompts are computed now."""
        return len(self.llm.backends._prefills)

    def kill(self, service: str) -> None:
        os.kill(self.local.pids()[service], signal.SIGKILL)

    @contextmanager
    def stopped(self, service: str) -> Iterator[None]:
        """Stop a process, which keeps its connections and answers nothing, and let it go on at the end."""
        pid = self.local.pids()[service]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - the processes send no signal
                await asyncio.sleep(0.001)


def prompts(count: int, length: int = 100) -> list[list[int]]:
    rng = random.Random(next(_numbers))
    return [[rng.randrange(5, 260) for _ in range(length)] for _ in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(model) -> AsyncIterator[LocalStack]:
    sizes = {"max_model_len": 256, "kv_cache_memory_gib": 0.02, "num_prefill_engines": 1, "enable_lora": True}
    args = EngineArgs(model=str(model), device="cpu", threads=1, **sizes)
    settings = await asyncio.to_thread(args.stack_settings)
    async with LocalStack(settings) as local:
        await local.start(timeout_s=120)
        yield local


@asynccontextmanager
async def connected(processes: LocalStack, *, prefill_timeout_s: float = 30.0) -> AsyncIterator[Stack]:
    frontend = processes.frontend_settings.model_copy(update={"remote_prefill_timeout_s": prefill_timeout_s})
    async with await AsyncLLM.connect(frontend) as llm:
        yield Stack(processes, llm)


async def test_tokens_are_those_of_one_engine_core(processes):
    async with connected(processes) as stack:
        for prompt, params in zip(prompts(3), (GREEDY, SEEDED, replace(SEEDED, n=2)), strict=True):
            assert await stack.tokens(prompt, params) == await stack.expected(prompt, params)

        # Whole blocks of 16 tokens; the sequences of one request read them once, and each counts them.
        assert stack.num_external_tokens >= 3 * 96
        assert (stack.num_prefills("done"), stack.num_prefills("failed")) == (3, 0)
        [prompt] = prompts(1, length=60)
        await stack.tokens(prompt, GREEDY)
        assert stack.num_prefills("done") == 3


async def test_prompts_of_an_adapter_are_computed_with_it(processes, model, tmp_path):
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    path = save_lora(tmp_path / "adapter", reference, "q_proj|k_proj|v_proj|up_proj", rank=4, seed=1)
    lora, [prompt] = LoRARequest("adapter", 1, str(path)), prompts(1)
    async with connected(processes) as stack:
        tokens = await stack.tokens(prompt, GREEDY, lora_request=lora)

        assert stack.num_external_tokens == 96
        assert tokens == await stack.expected(prompt, GREEDY, lora_request=lora)
        assert tokens != await stack.tokens(prompt, GREEDY)


@pytest.mark.parametrize(
    "services",
    [
        pytest.param(("worker", "engine-core-2"), id="the consumer's worker and the producer"),
        pytest.param(("engine-core", "worker-2"), id="the others", marks=pytest.mark.exhaustive),
    ],
)
async def test_no_request_is_lost_or_different_when_services_die(processes, services):
    """Each service is killed while prompts are computed, and while tokens are generated."""
    async with connected(processes) as stack:
        params, given = replace(SEEDED, max_tokens=100), prompts(24, length=150)
        expected = await asyncio.gather(*(stack.expected(prompt, params) for prompt in given))

        async def killed(service: str, moment: Callable[[], bool]) -> None:
            salt = f"salt-{next(_numbers)}"  # the prompts are computed anew
            running = [asyncio.create_task(stack.tokens(prompt, params, cache_salt=salt)) for prompt in given]
            await stack.until(moment)
            stack.kill(service)
            assert await asyncio.gather(*running) == expected, service
            await phases_again(stack)

        for service in services:
            await killed(service, lambda: stack.num_open_prefills > 4)
            seen = stack.num_external_tokens
            await killed(service, lambda: stack.num_external_tokens > seen + 4 * 144)  # noqa: B023 - used at once


@pytest.mark.parametrize("service", ["engine-core-2", "worker-2"])
async def test_requests_go_on_while_a_producer_stands_still(processes, service):
    """A stopped process is not lost: its connections stay open. Afterwards prompts are computed there again."""
    params, given = replace(SEEDED, max_tokens=40), prompts(12, length=150)
    async with connected(processes, prefill_timeout_s=2.0) as stack:
        expected = await asyncio.gather(*(stack.expected(prompt, params) for prompt in given))
        running = [asyncio.create_task(stack.tokens(prompt, params)) for prompt in given]
        await stack.until(lambda: stack.num_open_prefills > 4)
        with stack.stopped(service):
            async with asyncio.timeout(40):
                assert await asyncio.gather(*running) == expected

        await phases_again(stack)


async def phases_again(stack: Stack) -> None:
    """Wait until requests have two phases again."""
    before = stack.num_prefills("done")
    async with asyncio.timeout(60):
        while stack.num_prefills("done") == before:
            [prompt] = prompts(1)
            assert await stack.tokens(prompt, GREEDY) == await stack.expected(prompt, GREEDY)
