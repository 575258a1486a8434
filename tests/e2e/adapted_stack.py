"""A tiny model with all services in this process, for tests of adapters and prompt embeddings; services may be restarted."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.simulation.cluster import Service
from tetrad import LoRARequest, SamplingParams
from tetrad.engine_core_svc.scheduler.drafting import Drafts
from tetrad.engine_core_svc.service import serve as serve_engine_core
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.stack.one_process import Fields, OneProcessSettings, running
from tetrad.tokenizer_svc.service import serve as serve_tokenizer
from tetrad.worker_svc.service import serve as serve_worker

NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)


@dataclass(frozen=True)
class Services:
    """The services of a stack that a test may restart, and what takes its requests."""

    llm: AsyncLLM
    worker: Service
    engine_core: Service
    tokenizer: Service


def settings_of(
    directory: Path, name: str, *, frontend: Fields | None = None, worker: Fields | None = None, **engine_core: object
) -> OneProcessSettings:
    fields = {"block_size": 8, "max_model_len": 128, "num_gpu_blocks_override": 200}
    device = {"device": "cpu", "threads": 1} | dict(worker or {})
    return OneProcessSettings.of(str(directory), name, worker=device, engine_core=fields | engine_core, frontend=frontend)


@asynccontextmanager
async def served(directory: Path, name: str, **options: object) -> AsyncIterator[AsyncLLM]:
    async with running(settings_of(directory, name, **options), DirectCarrier()) as llm:
        yield llm


@asynccontextmanager
async def restartable(
    directory: Path, name: str, *, drafts: Drafts | None = None, **options: object
) -> AsyncIterator[Services]:
    """Run the services one by one; each of them ends at once when it is stopped. `drafts`: in place of what options say."""
    settings, carrier = settings_of(directory, name, **options), DirectCarrier()
    tokenizer = Service(serve_tokenizer, settings.tokenizer, carrier)
    worker = Service(serve_worker, settings.worker, carrier)
    core = Service(functools.partial(serve_engine_core, drafts=drafts), settings.engine_core, carrier)
    async with AsyncExitStack() as exits:
        for service in (tokenizer, worker, core):
            service.start()
            exits.push_async_callback(service.stop)
        llm = await exits.enter_async_context(await AsyncLLM.connect(settings.frontend, carrier))
        yield Services(llm, worker, core, tokenizer)


def prompts_of(count: int, seed: int = 0, *, longest: int = 60) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(5, 260) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


async def generate(
    llm: AsyncLLM, request_id: str, prompt: list[int] | dict, lora: LoRARequest | None = None, params: SamplingParams = GREEDY
) -> list[int]:
    given = prompt if isinstance(prompt, dict) else {"prompt_token_ids": prompt}
    stream = await llm.add_request(request_id, given, params, lora_request=lora)
    return [output async for output in stream][-1].outputs[0].token_ids


async def kill(services: Services, name: str) -> None:
    """End a service in the midst of what it does, and start another one."""
    if name in ("worker", "tokenizer"):  # they drain nothing
        await getattr(services, name).restart()
        return
    task = services.engine_core.task
    assert task is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    services.engine_core.start()


async def steps_pass(llm: AsyncLLM, count: int) -> None:
    """Return when the engine has brought so many steps more."""
    last = llm.num_engine_steps + count
    while llm.num_engine_steps < last:  # noqa: ASYNC110 - nothing tells of steps
        await asyncio.sleep(0)


@torch.inference_mode()
def check_greedy(model: torch.nn.Module, prompt: list[int], output: list[int]) -> None:
    logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    assert logits.argmax(-1).tolist() == output
