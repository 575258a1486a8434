"""The worker over gRPC on a Unix socket: the order of its life, the Execute stream, and what ends it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest

from tetrad.services.channel import open_channel
from tetrad.services.columns import pack_u32, unpack_u32
from tetrad.services.errors import FailedPrecondition, InternalError, InvalidRequest, ModelError, NotFound, from_rpc_error
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.service import WorkerServer

GREEDY = types_pb2.SamplingParams(temperature=0.0)


class Client:
    def __init__(self, channel, served):
        self.channel, self.served = channel, served
        self.life = worker_pb2_grpc.WorkerLifecycleServiceStub(channel)
        self.work = worker_pb2_grpc.WorkerServiceStub(channel)

    async def load(self, path, **options):
        return [message async for message in self.life.LoadModel(worker_pb2.LoadModelRequest(model=str(path), **options))]

    async def initialize(self, **changes):
        limits = {"num_blocks": 50, "block_size": 16, "max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 256}
        return await self.life.InitializeKvCache(worker_pb2.InitializeKvCacheRequest(**{**limits, **changes}))

    async def get_ready(self, path):
        await self.load(path)
        await self.initialize()
        return [message async for message in self.life.WarmUp(worker_pb2.WarmUpRequest())]

    async def info(self):
        return await self.life.GetInfo(worker_pb2.WorkerLifecycleServiceGetInfoRequest())

    async def open_stream(self, schema_revision=SCHEMA_REVISION, epoch=1):
        stream = self.work.Execute()
        hello = worker_pb2.ExecuteHello(schema_revision=schema_revision, epoch=epoch)
        await stream.write(worker_pb2.ExecuteRequest(hello=hello))
        first = await stream.read()
        assert first.ready.schema_revision == SCHEMA_REVISION
        return stream


@asynccontextmanager
async def connect(tmp_path, **settings):
    listen, profiles = f"unix:{tmp_path}/worker.sock", str(tmp_path / "profiles")
    served = await WorkerServer.start(WorkerSettings(**{"listen": listen, "threads": 1, "profile_dir": profiles, **settings}))
    try:
        async with open_channel(served.server.address) as channel:
            yield Client(channel, served)
    finally:
        await served.stop()


@pytest.fixture
async def client(tmp_path):
    async with connect(tmp_path) as client:
        yield client


def new(handle, ids, block, scheduled=None, **fields):
    return worker_pb2.NewRequestData(
        handle=handle,
        request_id=str(handle),
        token_ids=pack_u32(ids),
        num_prompt_tokens=len(ids),
        num_scheduled_tokens=scheduled or len(ids),
        block_ids=[pack_u32([block])],
        sampling_params=fields.pop("sampling_params", GREEDY),
        **fields,
    )


def step(step_id, *, new_requests=(), cached=(), removed=()):
    """`cached` holds (handle, num_computed_tokens) of decodes."""
    handles, computed = [row[0] for row in cached], [row[1] for row in cached]
    return worker_pb2.ExecuteRequest(
        step=worker_pb2.SchedulerOutput(
            step_id=step_id,
            new_requests=new_requests,
            cached_requests=worker_pb2.CachedRequestData(
                handles=pack_u32(handles),
                num_scheduled_tokens=pack_u32([1] * len(handles)),
                num_computed_tokens=pack_u32(computed),
            ),
            removed_handles=pack_u32(removed),
        )
    )


async def read_tokens(stream):
    output = (await asyncio.wait_for(stream.read(), 10)).output
    return output.step_id, dict(zip(unpack_u32(output.handles), unpack_u32(output.token_ids), strict=True))


async def error_of(call):
    with pytest.raises(grpc.RpcError) as error:
        await call
    return from_rpc_error(error.value)


async def test_life_from_start_to_ready(client, tiny_llama):
    assert (await client.info()).state == worker_pb2.WORKER_STATE_STARTED

    progress = await client.load(tiny_llama[0])
    assert progress[-1].model.architecture == "LlamaForCausalLM"
    assert progress[0].loaded_bytes < progress[-2].loaded_bytes
    spec = await client.life.GetKvCacheSpec(worker_pb2.GetKvCacheSpecRequest(block_size=16))
    group = spec.groups[0]
    assert (list(group.layers), group.block_size_bytes) == ([0, 1, 2], 3 * 16 * 2 * 2 * 16 * 4)
    request = worker_pb2.DetermineAvailableMemoryRequest(gpu_memory_utilization=0.5, max_num_batched_tokens=256)
    assert (await client.life.DetermineAvailableMemory(request)).available_bytes > 1 << 20
    assert (await client.initialize()).size_bytes == 50 * group.block_size_bytes
    assert (await client.info()).state == worker_pb2.WORKER_STATE_LOADED
    assert not client.served.server.health.ready
    warm = [message async for message in client.life.WarmUp(worker_pb2.WarmUpRequest())]

    assert warm[-1].completed == warm[-1].total > 0
    info = await client.info()
    assert (info.state, info.num_blocks, info.block_size) == (worker_pb2.WORKER_STATE_READY, 50, 16)
    assert client.served.server.health.ready


async def test_same_model_again_keeps_the_worker_ready(client, tiny_llama):
    await client.get_ready(tiny_llama[0])

    again = await client.load(tiny_llama[0])

    assert len(again) == 1
    assert (await client.info()).state == worker_pb2.WORKER_STATE_READY


async def test_another_model_takes_its_place(client, tiny_llama):
    await client.get_ready(tiny_llama[0])

    await client.load(tiny_llama[0], random_weights=True)

    assert (await client.info()).state == worker_pb2.WORKER_STATE_LOADED


async def test_calls_out_of_order(client, tiny_llama):
    assert isinstance(
        await error_of(client.life.GetKvCacheSpec(worker_pb2.GetKvCacheSpecRequest(block_size=16))), FailedPrecondition
    )
    assert isinstance(await error_of(client.initialize()), FailedPrecondition)
    await client.load(tiny_llama[0])
    assert isinstance(await error_of(client.open_stream()), FailedPrecondition)


async def test_models_that_cannot_be_loaded(client, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["FancyForCausalLM"]}')
    (tmp_path / "model.safetensors").write_bytes(b"")

    assert isinstance(await error_of(client.load(tmp_path / "nothing")), NotFound)
    assert isinstance(await error_of(client.load(tmp_path)), ModelError)


async def test_context_longer_than_the_models(client, tiny_llama):
    await client.load(tiny_llama[0])

    error = await error_of(client.initialize(max_model_len=4096))

    assert "4096" in error.message


async def test_plans_queued_before_any_result(client, tiny_llama, assert_greedy):
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    for number in range(2, 7):
        await stream.write(step(number, cached=[(3, 1 + number)]))

    results = [await read_tokens(stream) for _ in range(6)]

    assert [step_id for step_id, _ in results] == [1, 2, 3, 4, 5, 6]
    assert_greedy(tiny_llama[1], [5, 6, 7], [tokens[3] for _, tokens in results])
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_end_of_the_stream_forgets_requests(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    await read_tokens(stream)
    assert (await client.info()).num_requests == 1
    await stream.done_writing()
    await stream.read()

    stream = await client.open_stream()
    assert (await client.info()).num_requests == 0
    await stream.write(step(2, cached=[(3, 3)]))

    error = await error_of(stream.read())

    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PLAN")


async def test_new_stream_supersedes_the_old_one(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    old = await client.open_stream()
    await old.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    await read_tokens(old)

    young = await client.open_stream()
    await young.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(young))[1]
    error = await error_of(old.read())
    await young.write(step(2, cached=[(3, 3)]))

    assert isinstance(error, FailedPrecondition)
    assert 3 in (await read_tokens(young))[1]


async def test_an_older_engine_core_is_refused_while_a_newer_one_has_the_worker(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    newer = await client.open_stream(epoch=20)

    error = await error_of(client.open_stream(epoch=19))

    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_EPOCH")
    assert (await client.info()).epoch == 20
    await newer.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(newer))[1]
    await newer.done_writing()
    await newer.read()
    await client.open_stream(epoch=19)


async def test_an_engine_core_without_work_hears_of_its_successor(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    idle = await client.open_stream(epoch=1)

    await client.open_stream(epoch=2)

    assert (await error_of(idle.read())).reason == "STALE_EPOCH"


async def test_a_stream_and_the_worker_name_the_same_instance(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    stream = client.work.Execute()
    await stream.write(worker_pb2.ExecuteRequest(hello=worker_pb2.ExecuteHello(schema_revision=SCHEMA_REVISION, epoch=1)))

    ready = (await stream.read()).ready

    assert ready.instance_id == (await client.info()).instance_id != ""


async def test_the_same_question_keeps_the_cache_and_another_one_drops_it(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    ask = worker_pb2.DetermineAvailableMemoryRequest
    first = await client.life.DetermineAvailableMemory(ask(gpu_memory_utilization=0.5, max_num_batched_tokens=256))
    await client.initialize()

    again = await client.life.DetermineAvailableMemory(ask(gpu_memory_utilization=0.5, max_num_batched_tokens=256))
    kept = (await client.info()).num_blocks
    await client.life.DetermineAvailableMemory(ask(gpu_memory_utilization=0.25, max_num_batched_tokens=256))

    assert again == first
    assert (kept, (await client.info()).num_blocks) == (50, 0)


def with_blocks(**columns):
    message = step(1, new_requests=[new(3, [5, 6, 7], 1)])
    message.step.block_copies.source_block_ids = pack_u32(columns.get("sources", []))
    message.step.block_copies.target_block_ids = pack_u32(columns.get("targets", []))
    message.step.block_ids_to_zero = pack_u32(columns.get("zero", []))
    return message


def with_mask(num_words):
    message = step(1, new_requests=[new(3, [5, 6, 7], 1)])
    mask = worker_pb2.GrammarBitmask(handles=pack_u32([3]), bitmask=pack_u32([1] * num_words), num_words=num_words)
    message.step.grammar_bitmask.CopyFrom(mask)
    return message


def with_ragged_column():
    message = step(1, cached=[(3, 3)])
    message.step.cached_requests.handles = b"123"
    return message


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (step(1, new_requests=[new(3, [5, 6, 7], 50)]), "Block 50 does not exist; the KV cache has 50 blocks"),
        (with_blocks(sources=[1], targets=[4_000_000_000]), "Block 4000000000 does not exist"),
        (with_blocks(sources=[1, 2], targets=[3]), "copies 2 blocks to 1"),
        (with_blocks(zero=[77]), "Block 77 does not exist"),
        (with_mask(3), "Masks have 3 words; this vocabulary needs 10"),
        (with_ragged_column(), "cannot have 3 bytes"),
        (step(1, new_requests=[new(3, [5] * 257, 1)]), "has 257 tokens; the worker was set up for 256"),
        (step(1, new_requests=[new(n, [5], 1) for n in range(9)]), "set up for 8 requests; none more fits"),
        (step(1, new_requests=[new(3, [5], 1), new(3, [5], 2)]), "Handle 3 is in use"),
        (step(1, cached=[(9, 3)]), "no request with handle 9"),
        (worker_pb2.ExecuteRequest(hello=worker_pb2.ExecuteHello()), "every message of an Execute stream is a step"),
        (worker_pb2.ExecuteRequest(), "every message of an Execute stream is a step"),
    ],
)
async def test_a_plan_that_makes_no_sense_ends_the_stream_and_nothing_else(client, tiny_llama, plan, text):
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    await stream.write(plan)

    error = await error_of(stream.read())

    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PLAN")
    assert text in error.message
    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(stream))[1]


async def test_bytes_that_are_no_plan_end_the_stream_and_nothing_else(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    raw = client.channel.stream_stream("/tetrad.v1.WorkerService/Execute")()
    hello = worker_pb2.ExecuteRequest(hello=worker_pb2.ExecuteHello(schema_revision=SCHEMA_REVISION, epoch=1))
    await raw.write(hello.SerializeToString())
    await raw.read()
    await raw.write(b"\xff\xff\xff\xff")

    await error_of(raw.read())

    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(stream))[1]


async def test_device_failure_ends_the_stream_and_the_next_one_works(client, tiny_llama, monkeypatch):
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    runner = client.served.worker._runner
    monkeypatch.setattr(runner, "_forward", lambda inputs: 1 / 0)
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    await stream.write(step(2, cached=[(3, 3)]))

    error = await error_of(stream.read())

    assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "STEP_FAILED")
    monkeypatch.undo()
    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(stream))[1]


async def test_a_step_that_outlives_its_stream_for_too_long_means_a_stuck_device(tmp_path, tiny_llama, monkeypatch):
    end = threading.Event()
    async with connect(tmp_path, device="sim", stuck_timeout_s=0.05) as client:
        await client.get_ready(tiny_llama[0])
        stream = await client.open_stream()
        monkeypatch.setattr(client.served.worker._runner, "execute", lambda plan: end.wait(20))
        await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
        stream.cancel()

        with pytest.raises(InternalError, match=r"busy with a step for 0.05 s"):
            await asyncio.wait_for(client.served.stuck.wait(), 10)
        end.set()


async def test_draining_answers_the_steps_that_are_here_and_ends_the_stream_in_good_order(tmp_path, tiny_llama):
    async with connect(tmp_path, device="sim", sim_seconds_per_step=0.1) as client:
        await client.get_ready(tiny_llama[0])
        stream = await client.open_stream()
        await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
        await stream.write(step(2, cached=[(3, 3)]))
        await read_tokens(stream)

        stopping = asyncio.create_task(client.served.stop())

        assert (await read_tokens(stream))[0] == 2
        assert await asyncio.wait_for(stream.read(), 10) is grpc.aio.EOF
        await stopping


async def test_unsupported_request_fails_alone(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    lora = types_pb2.LoraRequest(name="x", id=1)
    await stream.write(step(1, new_requests=[new(1, [5], 1), new(2, [6], 2, lora_request=lora)]))

    output = (await stream.read()).output

    assert (unpack_u32(output.handles), [failure.handle for failure in output.failures]) == ([1], [2])
    assert output.failures[0].status.code == grpc.StatusCode.UNIMPLEMENTED.value[0]


async def test_logprobs_over_the_wire(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    params = types_pb2.SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=1)
    whole = types_pb2.SamplingParams(temperature=0.0, logprobs=-1)
    requests = [
        new(1, [5, 6, 7], 1, sampling_params=params),
        new(2, [6], 2),
        new(3, [6], 3, sampling_params=whole),
        new(4, [6], 4, sampling_params=params),
    ]
    await stream.write(step(1, new_requests=requests))

    output = (await stream.read()).output

    narrow, wide = sorted(output.logprobs_by_width, key=lambda group: group.columns.width)
    assert (sorted(unpack_u32(narrow.handles)), unpack_u32(wide.handles)) == ([1, 4], [3])
    columns = narrow.columns
    assert (columns.num_positions, columns.width, unpack_u32(columns.ranks)) == (2, 3, [1, 1])
    assert (wide.columns.num_positions, len(unpack_u32(wide.columns.token_ids))) == (1, wide.columns.width)
    assert (output.prompt_logprobs[0].start, output.prompt_logprobs[0].columns.num_positions) == (1, 2)
    assert unpack_u32(output.prompt_logprobs[0].columns.token_ids)[::2] == [6, 7]


async def test_a_budget_of_thinking_needs_to_know_its_end(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    plain, thinks = types_pb2.SamplingParams(temperature=0.0), types_pb2.SamplingParams(temperature=0.0)
    plain.thinking_token_budget = thinks.thinking_token_budget = 0
    thinks.thinking_end_token_ids.append(77)
    requests = [new(1, [5, 6], 1, sampling_params=plain), new(2, [5, 6], 2, sampling_params=thinks)]
    await stream.write(step(1, new_requests=requests))

    output = (await stream.read()).output

    assert (unpack_u32(output.handles), unpack_u32(output.token_ids)) == ([2], [77])
    assert output.failures[0].status.message == "thinking_token_budget needs thinking_end_token_ids."


async def test_wrong_schema_revision(client, tiny_llama):
    await client.get_ready(tiny_llama[0])

    assert isinstance(await error_of(client.open_stream(schema_revision=999)), FailedPrecondition)


async def test_what_this_device_cannot_do(client):
    for call in (
        client.life.Sleep(worker_pb2.WorkerLifecycleServiceSleepRequest()),
        client.life.WakeUp(worker_pb2.WorkerLifecycleServiceWakeUpRequest()),
        client.life.LoadLora(worker_pb2.WorkerLifecycleServiceLoadLoraRequest()),
        client.life.UnloadLora(worker_pb2.WorkerLifecycleServiceUnloadLoraRequest()),
    ):
        assert (await error_of(call)).code is grpc.StatusCode.UNIMPLEMENTED


async def test_collective_methods_are_only_those_registered(client):
    call = worker_pb2.WorkerLifecycleServiceCollectiveRpcRequest

    assert (await client.life.CollectiveRpc(call(method="get_num_requests"))).result_json == "0"
    assert isinstance(await error_of(client.life.CollectiveRpc(call(method="os.system", args_json='["true"]'))), NotFound)
    error = await error_of(client.life.CollectiveRpc(call(method="get_pid", args_json="[1]")))
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_profile_is_written(client, tiny_llama, tmp_path):
    await client.load(tiny_llama[0])
    await client.initialize()
    await client.life.StartProfile(worker_pb2.WorkerLifecycleServiceStartProfileRequest(prefix="run"))
    async for _ in client.life.WarmUp(worker_pb2.WarmUpRequest()):
        pass

    path = (await client.life.StopProfile(worker_pb2.WorkerLifecycleServiceStopProfileRequest())).path

    assert "linear_pointwise" in (tmp_path / "profiles" / path.rpartition("/")[2]).read_text()


async def test_sim_worker_answers_like_a_real_one(tmp_path, tiny_llama):
    async with connect(tmp_path, device="sim") as client:
        await client.get_ready(tiny_llama[0])
        stream = await client.open_stream()
        params = types_pb2.SamplingParams(seed=11)
        await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1, sampling_params=params)]))
        await stream.write(step(2, cached=[(3, 3)]))

        tokens = [await read_tokens(stream), await read_tokens(stream)]

        assert np.unique([step_id for step_id, _ in tokens]).tolist() == [1, 2]
        assert (await client.info()).device == "sim"


def test_process_stops_on_sigterm_and_leaves_78_for_a_model_that_cannot_be(tmp_path):
    command = [sys.executable, "-m", "tetrad.worker_svc", "--device", "sim", "--listen", f"unix:{tmp_path}/w.sock"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "server.started" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(10) == 0

    failed = subprocess.run([*command, "--model", str(tmp_path / "nothing.gguf")], stderr=subprocess.PIPE, text=True)

    assert failed.returncode == 78
    assert "nothing.gguf" in failed.stderr.splitlines()[-1]


def test_compute_threads_wait_asleep_unless_told_otherwise(tmp_path):
    """The setting must be there before torch is loaded; OMP_DISPLAY_ENV shows what the library took in."""
    code = (
        "from tetrad.worker_svc.config import WorkerSettings\n"
        "from tetrad.worker_svc.devices import open_device\n"
        "open_device(WorkerSettings(device='cpu'))"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}

    shown = subprocess.run([sys.executable, "-c", code], env={**environment, "OMP_DISPLAY_ENV": "true"}, capture_output=True)

    assert b"OMP_WAIT_POLICY = 'PASSIVE'" in shown.stderr


HUGE = 2**32 - 1
ON_ANY_DEVICE = [
    {"num_blocks": HUGE, "block_size": HUGE},
    {"max_num_seqs": HUGE},
    {"max_num_seqs": 60_000, "max_model_len": HUGE},
    {"block_size": 0},
]
IN_HOST_MEMORY = [{"num_blocks": HUGE}, {"block_size": HUGE}, {"max_model_len": HUGE}]


@pytest.mark.parametrize(
    ("device", "changes"),
    [*(("sim", each) for each in ON_ANY_DEVICE), *(("cpu", each) for each in ON_ANY_DEVICE + IN_HOST_MEMORY)],
)
async def test_a_layout_that_no_memory_holds_is_refused_with_its_numbers(tiny_llama, tmp_path, device, changes):
    async with connect(tmp_path, device=device) as client:
        await client.load(tiny_llama[0])

        with pytest.raises(grpc.RpcError) as caught:
            await client.initialize(**changes)

        error = from_rpc_error(caught.value)
        assert isinstance(error, FailedPrecondition | InvalidRequest)
        assert all(str(value) in error.message or error.field == name for name, value in changes.items())
        assert (await client.initialize()).size_bytes > 0
