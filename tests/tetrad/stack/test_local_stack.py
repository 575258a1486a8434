"""The local stack over the real services with a simulated device: addresses, crashes, and the end."""

import asyncio
import os
import shutil
import signal
import stat
import time

import psutil
import pytest

from tetrad import EngineArgs, SamplingParams
from tetrad.library.async_llm import AsyncLLM
from tetrad.library.event_loop_thread import EventLoopThread
from tetrad.services.errors import FailedPrecondition, InvalidRequest
from tetrad.services.rpc.grpc_pollers import GRPC_POLLERS
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.private_directory import private_directories


def local_stack(model) -> LocalStack:
    return LocalStack(EngineArgs(model=str(model), device="sim", max_model_len=512).stack_settings())


@pytest.fixture
async def stack(smollm2):
    """A stack of one test."""
    async with await asyncio.to_thread(local_stack, smollm2) as stack:
        await stack.start(timeout_s=90)
        yield stack


@pytest.fixture(scope="module")
def shared(smollm2):
    """A stack of several tests, in an event loop of its own."""
    loop, stack = EventLoopThread(), local_stack(smollm2)
    loop.run(stack.start(timeout_s=90))
    yield stack
    loop.run(stack.close())
    loop.close()


async def test_its_sockets_are_private_and_their_paths_short(shared):
    assert stat.S_IMODE(shared.directory.stat().st_mode) == 0o700
    assert all(len(str(path)) < 100 for path in shared.directory.iterdir())
    assert shared.directory in private_directories()


async def test_a_rolling_restart_of_a_stack_that_sleeps_restarts_every_service_and_wakes_it(smollm2):
    settings = await asyncio.to_thread(EngineArgs(model=str(smollm2), device="sim", max_model_len=512).stack_settings)
    asleep = asyncio.Event()

    def on_state(name: str, state: str, why: str) -> None:
        if (name, state) == ("worker", "not ready"):
            asleep.set()

    async with LocalStack(settings, on_state=on_state) as stack:
        await stack.start(timeout_s=90)
        before = stack.pids()
        async with AsyncLLM.from_target(str(stack.directory)) as llm:
            await llm.start()
            await llm.sleep(level=1)
            await asleep.wait()

            await stack.restart(timeout_s=60)

            *_, last = [output async for output in llm.generate("A story", SamplingParams(max_tokens=5, ignore_eos=True), "x")]
        assert len(last.outputs[0].token_ids) == 5
        assert not set(before.values()) & set(stack.pids().values())


async def test_close_ends_every_service_and_removes_the_directory_within_5_s(stack):
    processes = [psutil.Process(pid) for pid in stack.pids().values()]

    start = time.monotonic()
    await stack.close()

    assert time.monotonic() - start < 5
    assert len(processes) == 3
    assert not psutil.wait_procs(processes, timeout=0.5)[1]
    assert not stack.directory.exists()


async def test_a_close_that_is_cancelled_kills_every_service_and_removes_the_directory(smollm2):
    """A second Ctrl-C, while services still end."""
    settings = await asyncio.to_thread(EngineArgs(model=str(smollm2), device="sim", max_model_len=512).stack_settings)
    started = asyncio.Event()
    stack = LocalStack(settings, on_state=lambda *_: started.set() if len(stack.pids()) == 3 else None)
    starting = asyncio.create_task(stack.start(timeout_s=90))
    await started.wait()
    processes = [psutil.Process(pid) for pid in stack.pids().values()]
    for process in processes:
        process.suspend()
    starting.cancel()
    await asyncio.sleep(0.1)

    starting.cancel()
    await asyncio.wait({starting}, timeout=1)

    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=5)
    assert starting.cancelled()
    assert not alive
    assert not stack.directory.exists()


async def test_a_stack_that_cannot_be_leaves_neither_directory_nor_descriptor(smollm2, monkeypatch, tmp_path):
    """A program may catch the error, and make another stack."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("tetrad.stack.private_directory._PARENT", tmp_path)
    args = EngineArgs(model=str(smollm2), data_parallel_size=2)
    settings = await asyncio.to_thread(args.stack_settings, port=0)
    num_descriptors = psutil.Process().num_fds()

    with pytest.raises(InvalidRequest, match="2 workers need a GPU each"):
        LocalStack(settings, serve=True)

    assert (list(tmp_path.iterdir()), psutil.Process().num_fds()) == ([], num_descriptors)


async def test_its_services_have_the_cheaper_of_grpcs_pollers(shared):
    environments = [psutil.Process(pid).environ() for pid in shared.pids().values()]

    assert all(environment.items() >= GRPC_POLLERS.items() for environment in environments)


async def test_a_request_outlives_the_death_of_each_service(shared):
    """The one promise that needs supervisor and services together."""
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    async with AsyncLLM.from_target(str(shared.directory)) as llm:
        for name in ("worker", "tokenizer", "engine-core"):
            os.kill(shared.pids()[name], signal.SIGKILL)
            async with asyncio.timeout(60):
                *_, last = [output async for output in llm.generate("Hello", params)]
            assert len(last.outputs[0].token_ids) == 8


@pytest.mark.parametrize("name", ["worker", pytest.param("engine-core", marks=pytest.mark.exhaustive)])
async def test_a_removed_directory_of_sockets_comes_back_with_the_next_death_of_a_service(stack, name):
    """A cleaner of /tmp removes it. Whoever starts again makes its own socket, and reaches the others at new ones."""
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    directory = str(stack.directory)
    async with AsyncLLM.from_target(directory) as llm:
        shutil.rmtree(directory)

        os.kill(stack.pids()[name], signal.SIGKILL)
        async with asyncio.timeout(60):
            *_, last = [output async for output in llm.generate("Hello", params)]

    assert len(last.outputs[0].token_ids) == 8
    assert stat.S_IMODE(stack.directory.stat().st_mode) == 0o700


async def test_a_target_that_is_neither_form_is_an_error():
    with pytest.raises(ValueError, match="TOKENIZER,ENGINE"):
        AsyncLLM.from_target("127.0.0.1:50051")


async def test_a_stack_that_cannot_start_leaves_nothing(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    settings = await asyncio.to_thread(EngineArgs(model=str(broken), device="sim").stack_settings)
    stack = LocalStack(settings)

    with pytest.raises(FailedPrecondition, match=r"broken\.gguf"):
        await stack.start(timeout_s=90)

    assert stack.pids() == {}
    assert not stack.directory.exists()
