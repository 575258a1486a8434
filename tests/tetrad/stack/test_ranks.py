"""Workers that compute one model, in a local stack, as shards, as stages or each by itself; any may die or stand still.

`make test` runs shards of stages, which need what both splits need; `make exhaustive-test` runs each split alone, too.
"""

import asyncio
import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.stack import free_ports
from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import save_lora
from tetrad import LLM, EngineArgs, LoRARequest, SamplingParams
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.library.async_llm import AsyncLLM
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.services.errors import FailedPrecondition
from tetrad.services.settings import ServiceSettings, replaced
from tetrad.stack.child import Child
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.one_process import OneProcessSettings, running
from tetrad.worker_svc.config import WorkerSettings

DIGITS = StructuredOutputsParams(regex="[0-9]{3}-[a-f]{30}")
SEEDED = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.9, seed=3)
TIMEOUT_S = 90
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
SLOW = [("engine-core", KILL), ("worker", STOP), ("worker-2", STOP)]
"""A process that stands still is noticed by pings: these take 20 s each. `make test-ranks` has them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapter(model, tmp_path_factory) -> LoRARequest:
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    modules = "q_proj|o_proj|down_proj|embed_tokens|lm_head"
    return LoRARequest("sql", 1, str(save_lora(tmp_path_factory.mktemp("adapter"), reference, modules, seed=5)))


FAULTS = [("worker", KILL), ("worker-2", KILL)]
SPLITS = [
    # The first shard of the first stage, which gets the engine core's orders, and the last one of the last.
    pytest.param({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, [("worker", KILL), ("worker-4", KILL)], id="both"),
    pytest.param({"tensor_parallel_size": 2}, FAULTS, id="shards", marks=pytest.mark.exhaustive),
    pytest.param({"pipeline_parallel_size": 2}, FAULTS, id="stages", marks=pytest.mark.exhaustive),
    pytest.param({"data_parallel_size": 2}, [], id="engine cores", marks=pytest.mark.exhaustive),
]
"""The sizes of a split, with the processes that are stopped under load."""


def args(model: Path, **options: Any) -> EngineArgs:
    limits = {"max_model_len": 256, "kv_cache_memory_gib": 0.05, "threads": 1, "enable_lora": True}
    return EngineArgs(model=str(model), device="cpu", **limits, **options)


def numbered(name: str, number: int) -> list[str]:
    """Return the names of processes of a kind."""
    return [name, *(f"{name}-{place}" for place in range(2, number + 1))]


async def answers(llm: AsyncLLM, name: str, adapter: LoRARequest) -> list[tuple[int, ...]]:
    """Return the tokens of six requests: seeded and greedy ones, one of them constrained, two with an adapter."""

    async def one(number: int) -> tuple[int, ...]:
        params = SEEDED.clone()
        if number % 2:
            params.temperature = 0.0
        if number == 2:
            params.structured_outputs = DIGITS
        lora = adapter if number > 3 else None
        stream = llm.generate(f"Story {number}", params, f"{name}-{number}", lora_request=lora)
        *_, last = [output async for output in stream]
        return tuple(last.outputs[0].token_ids)

    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.gather(*map(one, range(6)))


@pytest.fixture(scope="module")
def expected(model, adapter) -> list[tuple[int, ...]]:
    """Return the tokens that one rank, in this process, brings."""
    worker = {"device": "cpu", "threads": 1, "kv_cache_memory_gib": 0.05}
    settings = OneProcessSettings.of(
        str(model), "direct", worker=worker, engine_core={"max_model_len": 256, "enable_lora": True}
    )

    async def alone() -> list[tuple[int, ...]]:
        async with running(settings, DirectCarrier()) as llm:
            return await answers(llm, "alone", adapter)

    return asyncio.run(alone())


@pytest.mark.parametrize(("sizes", "faults"), SPLITS)
async def test_a_split_brings_the_tokens_of_one_rank_and_a_lost_rank_costs_no_request(model, adapter, expected, sizes, faults):
    """The model drafts for itself, but not for several engine cores. Fewer blocks than requests need: some are preempted."""
    own = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3}
    num_engines, num_workers = sizes.get("data_parallel_size", 1), math.prod(sizes.values())
    options = {**sizes, "speculative_config": own if num_engines == 1 else NGRAM, "num_gpu_blocks_override": 20}
    assert len(set(expected)) == len(expected)

    async with LocalStack(await asyncio.to_thread(args(model, **options).stack_settings)) as stack:
        await stack.start(timeout_s=TIMEOUT_S)
        workers, engines = numbered("worker", num_workers), numbered("engine-core", num_engines)
        assert set(stack.pids()) == {"tokenizer", *workers, *engines}
        async with AsyncLLM.from_target(str(stack.directory)) as llm:
            found = await llm.start()
            counted = {"data_parallel_size": found.num_engines}
            assert {name: counted.get(name, getattr(found.engine_info, name)) for name in sizes} == sizes
            assert await answers(llm, "together", adapter) == expected
            assert set(await llm.collective_rpc("get_pid")) == {stack.pids()[name] for name in workers}
            for name, number in [*faults, *(SLOW if faults and os.environ.get("TEST_SLOW_FAULTS") else [])]:
                answering = asyncio.create_task(answers(llm, f"{name}-{number}", adapter))
                await asyncio.sleep(0.2)
                os.kill(stack.pids()[name], number)
                assert await answering == expected, name
        processes = [psutil.Process(pid) for pid in stack.pids().values()]
        directory = stack.directory

    assert not psutil.wait_procs(processes, timeout=1)[1]
    assert not directory.exists()


@pytest.mark.parametrize(
    "split", ["tensor_parallel_size", pytest.param("pipeline_parallel_size", marks=pytest.mark.exhaustive)]
)
async def test_a_lost_rank_costs_no_request_where_the_ranks_share_no_memory(model, adapter, expected, split):
    """As on several machines: they meet at ports, and exchange tensors and orders over gloo."""
    targets = [f"127.0.0.1:{port}" for port in free_ports(2)]

    def at_ports(name: str, settings: ServiceSettings) -> ServiceSettings:
        if isinstance(settings, WorkerSettings):
            return replaced(settings, listen=targets[settings.rank], log_level="info")
        return replaced(settings, worker_target=",".join(targets)) if isinstance(settings, EngineCoreSettings) else settings

    def without_shared_memory(child: Child) -> Child:
        run = f"import os, runpy; del os.memfd_create; runpy.run_module('{child.command[-1]}', run_name='__main__')"
        return replace(child, command=(sys.executable, "-c", run)) if child.program == "worker" else child

    settings = await asyncio.to_thread(args(model, **{split: 2}).stack_settings)
    async with LocalStack(settings, adapt=at_ports, adapt_child=without_shared_memory) as stack:
        await stack.start(timeout_s=TIMEOUT_S)
        async with AsyncLLM.from_target(str(stack.directory)) as llm:
            await llm.start()
            for name, number in FAULTS:
                answering = asyncio.create_task(answers(llm, name, adapter))
                await asyncio.sleep(0.2)
                os.kill(stack.pids()[name], number)
                assert await answering == expected, name
        assert "orders.gloo" in (stack.directory / "log").read_text()


async def test_a_rolling_restart_after_an_upgrade_brings_all_ranks_of_the_new_release(model, tmp_path):
    """Ranks of two releases do not meet: one that restarted alone would wait for the others for ever."""
    new = tmp_path / "tetrad-9.9.9.dist-info"
    new.mkdir()
    (new / "METADATA").write_text("Metadata-Version: 2.1\nName: tetrad\nVersion: 9.9.9\n")
    environments = []

    def with_own_environment(child: Child) -> Child:
        environments.append(dict(child.environment))
        return replace(child, environment=environments[-1])

    settings = await asyncio.to_thread(args(model, tensor_parallel_size=2).stack_settings)
    async with LocalStack(settings, adapt_child=with_own_environment) as stack:
        await stack.start(timeout_s=TIMEOUT_S)
        for each in environments:
            each["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), each.get("PYTHONPATH")]))
        async with AsyncLLM.from_target(str(stack.directory)) as llm:
            stream = llm.generate("A story", SEEDED, "during an upgrade")
            first = await anext(stream)

            await stack.restart(timeout_s=TIMEOUT_S)

            *_, last = [first, *[output async for output in stream]]
            version = (await llm.start()).engine_info.version

    assert len(last.outputs[0].token_ids) == SEEDED.max_tokens
    assert version == "9.9.9"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tensor_parallel_size": 3}, r"tensor_parallel_size 3 does not divide .* It may be: 1, 2, 4\."),
        ({"pipeline_parallel_size": 3}, r"pipeline_parallel_size 3 exceeds this model's 2 layers"),
    ],
    ids=str,
)
def test_a_split_that_a_model_does_not_allow_is_refused(model, options, text):
    with pytest.raises(FailedPrecondition, match=text):
        LLM(str(model), device="cpu", max_model_len=256, threads=1, **options)


def test_a_simulated_device_refuses_ranks(model):
    with pytest.raises(Exception, match="tensor_parallel_size 2: the sim device computes a model on one worker"):
        LLM(str(model), device="sim", max_model_len=256, tensor_parallel_size=2)


def test_an_engine_core_needs_an_address_for_each_rank():
    with pytest.raises(ValueError, match="worker_target names 1 workers, but tensor_parallel_size is 2"):
        EngineCoreSettings(worker_target="127.0.0.1:1", tensor_parallel_size=2)
    with pytest.raises(ValueError, match=r"worker_target names 2 workers, .* is 2 times pipeline_parallel_size 2"):
        EngineCoreSettings(worker_target="127.0.0.1:1,127.0.0.1:2", tensor_parallel_size=2, pipeline_parallel_size=2)
