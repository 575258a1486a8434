"""Workers that compute one model, in a local stack, as shards or as stages; any of them may die or stand still."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import merged, save_lora
from tetrad import LLM, EngineArgs, LoRARequest, SamplingParams
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.library.async_llm import AsyncLLM
from tetrad.services.errors import FailedPrecondition
from tetrad.stack.local_stack import LocalStack

DIGITS = StructuredOutputsParams(regex="[0-9]{3}-[a-f]{30}")
SIZES = [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}]
SEEDED = SamplingParams(max_tokens=80, ignore_eos=True, temperature=0.9, seed=3)
TIMEOUT_S = 90
FAULTS = [("worker", signal.SIGKILL), ("worker-2", signal.SIGKILL)]
SLOW_FAULTS = [("engine-core", signal.SIGKILL), ("worker", signal.SIGSTOP), ("worker-2", signal.SIGSTOP)]
"""A process that stands still is noticed by pings: these take 20 s each. `make test-ranks` has them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def args(model: Path, **options: int) -> EngineArgs:
    return EngineArgs(model=str(model), device="cpu", max_model_len=256, kv_cache_memory_gib=0.05, threads=1, **options)


async def answers(llm: AsyncLLM, name: str) -> list[tuple[int, ...]]:
    """Return the tokens of six requests, all seeded, one of them constrained."""

    async def one(number: int) -> tuple[int, ...]:
        params = SEEDED.clone()
        if number == 3:
            params.structured_outputs = DIGITS
        *_, last = [output async for output in llm.generate(f"Story {number}", params, f"{name}-{number}")]
        return tuple(last.outputs[0].token_ids)

    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.gather(*map(one, range(6)))


async def test_a_rank_that_is_lost_under_load_costs_no_request_and_changes_no_token(model):
    faults = FAULTS + (SLOW_FAULTS if os.environ.get("TETRAD_TEST_SLOW_FAULTS") else [])
    async with LocalStack(await asyncio.to_thread(args(model).stack_settings)) as stack:
        await stack.start(timeout_s=TIMEOUT_S)
        async with AsyncLLM.from_target(str(stack.directory)) as llm:
            expected = await answers(llm, "alone")

    for sizes in SIZES:
        # Fewer blocks than the requests need: some are preempted.
        settings = args(model, num_gpu_blocks_override=24, **sizes).stack_settings
        async with LocalStack(await asyncio.to_thread(settings)) as stack:
            await stack.start(timeout_s=TIMEOUT_S)
            assert set(stack.pids()) == {"worker", "worker-2", "engine-core", "tokenizer"}
            async with AsyncLLM.from_target(str(stack.directory)) as llm:
                info = (await llm.start()).engine_info
                assert {name: getattr(info, name) for name in sizes} == sizes
                assert await answers(llm, "together") == expected
                for name, number in faults:
                    answering = asyncio.create_task(answers(llm, f"{name}-{number}"))
                    await asyncio.sleep(0.2)
                    os.kill(stack.pids()[name], number)
                    assert await answering == expected, (sizes, name)
            processes = [psutil.Process(pid) for pid in stack.pids().values()]
            directory = stack.directory

        assert not psutil.wait_procs(processes, timeout=1)[1]
        assert not directory.exists()


def test_a_program_asks_every_rank_and_a_size_that_does_not_divide_is_refused(model):
    with LLM(str(model), device="cpu", max_model_len=256, kv_cache_memory_gib=0.05, threads=1, tensor_parallel_size=2) as llm:
        pids = llm.collective_rpc("get_pid")
        assert len(set(pids)) == 2
        assert llm.llm_engine.get_parallel_config().tensor_parallel_size == 2

    with pytest.raises(FailedPrecondition, match=r"tensor_parallel_size 3 does not divide .* It may be: 1, 2, 4\."):
        LLM(str(model), device="cpu", max_model_len=256, threads=1, tensor_parallel_size=3)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_adapters_are_loaded_into_every_rank_and_again_into_one_that_was_lost(model, tmp_path, sizes):
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    adapter = save_lora(tmp_path / "adapter", reference, "q_proj|o_proj|down_proj|embed_tokens|lm_head", seed=5)
    models, prompt = {None: reference, "sql": merged(reference, adapter)}, {"prompt_token_ids": [7, 8, 9]}
    requests = [None, LoRARequest("sql", 1, str(adapter))]
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    options = {"device": "cpu", "max_model_len": 256, "kv_cache_memory_gib": 0.05, "threads": 1, "enable_lora": True}

    with LLM(str(model), **options, **sizes) as llm:
        for turn in range(2):
            outputs = llm.generate([prompt, prompt], greedy, lora_request=requests)
            for request, output in zip(requests, outputs, strict=True):
                ids = output.outputs[0].token_ids
                with torch.inference_mode():
                    logits = models[request and request.lora_name](torch.tensor([[7, 8, 9, *ids[:-1]]])).logits[0, 2:]
                assert ids == logits.argmax(-1).tolist()
            if turn == 0:
                os.kill(llm.collective_rpc("get_pid")[1], signal.SIGKILL)
        assert llm.llm_engine.list_loras() == {1}
        assert llm.llm_engine.remove_lora(1)


def test_a_simulated_device_refuses_ranks(model):
    with pytest.raises(Exception, match="tensor_parallel_size 2: the sim device computes a model on one worker"):
        LLM(str(model), device="sim", max_model_len=256, tensor_parallel_size=2)


def test_an_engine_core_needs_an_address_for_each_rank():
    with pytest.raises(ValueError, match="worker_target names 1 workers, but tensor_parallel_size is 2"):
        EngineCoreSettings(worker_target="127.0.0.1:1", tensor_parallel_size=2)
    with pytest.raises(ValueError, match=r"worker_target names 2 workers, .* is 2 times pipeline_parallel_size 2"):
        EngineCoreSettings(worker_target="127.0.0.1:1,127.0.0.1:2", tensor_parallel_size=2, pipeline_parallel_size=2)
