"""Updates of the weights under load, of one or several ranks and engine cores, whose processes may die meanwhile.

No request is lost, and each token of an output is that of the weights which the output names for it.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import save_lora
from tests.weight_files import save_weights, whole_model
from tetrad import EngineArgs, LoRARequest, SamplingParams
from tetrad.frontend.request.weight_versions import WeightVersionSpan
from tetrad.library.async_llm import AsyncLLM
from tetrad.library.event_loop_thread import EventLoopThread
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.one_process import OneProcessSettings, running

LENGTH = 120
# The tokenizer lacks a few ids of the vocabulary, which no prompt may have.
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True, allowed_token_ids=list(range(260)))
TIMEOUT_S = 120
NUM_REQUESTS = 6
NUM_ADAPTED = 2
MAX_MODEL_LEN = 256


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def weights(own, tmp_path_factory) -> Path:
    return save_weights(own, tmp_path_factory.mktemp("new"), 2)


@pytest.fixture(scope="module")
def adapter(own, tmp_path_factory) -> LoRARequest:
    reference = AutoModelForCausalLM.from_pretrained(own, dtype=torch.float32)
    return LoRARequest("sql", 1, str(save_lora(tmp_path_factory.mktemp("adapter"), reference, "q_proj|down_proj", seed=5)))


@pytest.fixture(scope="module")
def models(own, weights, tmp_path_factory) -> dict[str, Path]:
    """The models of each version; "before" is what tests of a shared stack begin with."""
    return {"default": own, "before": own, "new": whole_model(own, weights, tmp_path_factory.mktemp("whole") / "new")}


def prompt(number: int) -> list[int]:
    return [7 + number, *range(20, 60), number]


async def outputs(llm: AsyncLLM, adapter: LoRARequest, name: str) -> list:
    async def one(number: int):
        lora = adapter if number < NUM_ADAPTED else None
        stream = llm.generate({"prompt_token_ids": prompt(number)}, GREEDY, f"{name}-{number}", lora_request=lora)
        *_, last = [output async for output in stream]
        return last.outputs[0]

    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.gather(*map(one, range(NUM_REQUESTS)))


async def across_an_update(llm: AsyncLLM, own: Path, weights: Path, adapter: LoRARequest) -> list:
    """Return the outputs of requests that generated while the model's own weights became the others, "new"."""
    for attempt in range(20):  # an update may come between two waves of requests
        updating = asyncio.create_task(llm.update_weights_from_disk(str(weights), "new"))
        waves: list[list] = []
        while not updating.done():
            waves.append(await outputs(llm, adapter, f"load-{attempt}-{len(waves)}"))
        await updating
        for wave in waves:
            if any(len(output.weight_versions or ()) == 2 for output in wave):
                return wave
        await llm.update_weights_from_disk(str(own), "before")
    raise AssertionError("every update came between two waves of requests")


async def check_tokens(found: list, models: dict[str, Path], adapter: LoRARequest) -> None:
    """Check each span of each output of waves of requests against a model that was started with the span's weights."""

    async def check(llm: AsyncLLM, place: int, span: WeightVersionSpan) -> None:
        number, token_ids = place % NUM_REQUESTS, found[place].token_ids
        params = GREEDY.clone()
        params.max_tokens = span.end - span.start
        stream = llm.generate(
            {"prompt_token_ids": prompt(number) + token_ids[: span.start]},
            params,
            f"{place}-{span.start}",
            lora_request=adapter if number < NUM_ADAPTED else None,
        )
        *_, last = [each async for each in stream]
        assert list(last.outputs[0].token_ids) == token_ids[span.start : span.end], (place, span)

    whole = (WeightVersionSpan("default", 0, LENGTH),)
    spans = [(place, span) for place, output in enumerate(found) for span in output.weight_versions or whole]
    assert {span.version for _, span in spans} <= models.keys()
    for version in {span.version for _, span in spans}:
        worker = {"device": "cpu", "threads": 1, "kv_cache_memory_gib": 0.05}
        engine_core = {"max_model_len": MAX_MODEL_LEN, "enable_lora": True}
        settings = OneProcessSettings.of(str(models[version]), "direct", worker=worker, engine_core=engine_core)
        async with running(settings, DirectCarrier()) as llm:
            await asyncio.gather(*(check(llm, place, span) for place, span in spans if span.version == version))


async def started(model: Path, **sizes: int) -> LocalStack:
    """Return a stack that accepts requests."""
    limits = {"max_model_len": MAX_MODEL_LEN, "kv_cache_memory_gib": 0.05, "threads": 1}
    args = EngineArgs(model=str(model), device="cpu", enable_lora=True, **limits, **sizes)
    stack = LocalStack(await asyncio.to_thread(args.stack_settings))
    try:
        await stack.start(timeout_s=TIMEOUT_S)
    except BaseException:
        await stack.close()
        raise
    return stack


@asynccontextmanager
async def llm_of(stack: LocalStack) -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM.from_target(str(stack.directory)) as llm:
        await llm.start()
        yield llm


@pytest.fixture(scope="module")
def shared(own):
    """Returns a stack of these sizes, which tests share that kill its processes. Each of them updates its weights first."""
    loop = EventLoopThread()
    stacks: dict[tuple, LocalStack] = {}

    def stack_of(**sizes: int) -> LocalStack:
        key = tuple(sizes.items())
        if key not in stacks:
            stacks[key] = loop.run(started(own, **sizes))
        return stacks[key]

    yield stack_of
    for stack in stacks.values():
        loop.run(stack.close())
    loop.close()


SIZES = [
    pytest.param({}, id="one worker"),
    pytest.param({"tensor_parallel_size": 2}, id="shards"),
    pytest.param({"pipeline_parallel_size": 2}, id="stages", marks=pytest.mark.exhaustive),
    pytest.param({"data_parallel_size": 2}, id="engine cores"),
]


FEW_SIZES = [SIZES[0], pytest.param({"tensor_parallel_size": 2}, id="shards", marks=pytest.mark.exhaustive)]


@pytest.fixture
async def updatable(request, shared, own):
    """Yields an AsyncLLM of a stack of these sizes: a new one, or the shared one of one worker with the weights of before."""
    if sizes := request.param:
        async with await started(own, **sizes) as stack, llm_of(stack) as llm:
            yield llm
    else:
        async with llm_of(await asyncio.to_thread(shared)) as llm:
            await llm.update_weights_from_disk(str(own), "before")
            yield llm


@pytest.mark.parametrize("updatable", SIZES, indirect=True)
async def test_each_token_is_of_the_weights_that_its_output_names(updatable, own, weights, adapter, models):
    llm = updatable
    found = await across_an_update(llm, own, weights, adapter)
    later = await outputs(llm, adapter, "later")

    assert [len(output.token_ids) for output in found] == [LENGTH] * NUM_REQUESTS
    assert [[span.version for span in output.weight_versions] for output in later] == [["new"]] * NUM_REQUESTS
    await check_tokens([*found, *later], models, adapter)


async def test_an_update_survives_the_death_of_an_engine_core_and_its_worker_together(shared, own, weights, adapter, models):
    stack = await asyncio.to_thread(shared)
    async with llm_of(stack) as llm:
        await llm.update_weights_from_disk(str(own), "before")
        await llm.update_weights_from_disk(str(weights), "new")
        pids = stack.pids()
        for name in ("engine-core", "worker"):
            os.kill(pids[name], signal.SIGSTOP)
        for name in ("engine-core", "worker"):
            os.kill(pids[name], signal.SIGKILL)

        found = await outputs(llm, adapter, "later")

        assert await llm.get_weight_version() == "new"
    assert [[span.version for span in output.weight_versions] for output in found] == [["new"]] * NUM_REQUESTS
    await check_tokens(found, models, adapter)


@pytest.mark.parametrize("sizes", FEW_SIZES)
@pytest.mark.parametrize("killed", ["worker", "engine-core"])
async def test_an_update_survives_the_death_of_a_process_in_its_midst(shared, own, weights, adapter, models, sizes, killed):
    """The worker stands still when it gets the order, so the update is in its midst when the process dies."""
    stack = await asyncio.to_thread(shared, **sizes)
    async with llm_of(stack) as llm:
        await llm.update_weights_from_disk(str(own), "before")
        under_load = asyncio.create_task(outputs(llm, adapter, "load"))
        await asyncio.sleep(0.1)
        await llm.start_weight_update()
        await llm.update_weights({"update_info": {"path": str(weights)}})
        worker = stack.pids()["worker"]
        os.kill(worker, signal.SIGSTOP)
        finishing = asyncio.create_task(llm.finish_weight_update("new"))
        await asyncio.sleep(0.3)
        os.kill(stack.pids()[killed], signal.SIGKILL)
        if killed != "worker":
            os.kill(worker, signal.SIGCONT)

        async with asyncio.timeout(TIMEOUT_S):
            await finishing
        found, later = await under_load, await outputs(llm, adapter, "later")

        assert await llm.get_weight_version() == "new"
    await check_tokens([*found, *later], models, adapter)
