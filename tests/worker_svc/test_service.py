"""The worker over gRPC on a Unix socket: the order of its lifecycle, the Execute stream, and its ends."""

import asyncio
import os
import signal
import subprocess
import sys

import grpc
import numpy as np
import pytest

from tests.worker_svc.service_client import connect, error_of, new, read_tokens, step
from tetrad.services.errors import Code, FailedPrecondition, ModelError, NotFound
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.version import CONTRACT_REVISION, SCHEMA_REVISION
from tetrad.v1 import types_pb2, worker_pb2


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

    assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, "INVALID_PLAN")


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


async def test_a_worker_whose_group_never_met_serves_an_engine_core_without_a_group(client, tiny_llama, tmp_path):
    """The engine core was started with a wrong number of ranks, and then with one."""
    [*_, whole] = await client.load(tiny_llama[0])
    addresses = [f"unix:{tmp_path}/{number}" for number in range(2)]
    pair = worker_pb2.WorkerGroup(tensor_parallel_size=2, pipeline_parallel_size=1, group_epoch=1, addresses=addresses)
    join = client.life.JoinGroup(worker_pb2.JoinGroupRequest(rank=0, group=pair, timeout_s=0.05))
    assert (await error_of(join)).code is Code.DEADLINE_EXCEEDED

    # An engine core sees by this that it must take the worker out of the group.
    assert (await client.info()).group == pair
    alone = worker_pb2.WorkerGroup(tensor_parallel_size=1, pipeline_parallel_size=1, group_epoch=2, addresses=addresses[:1])
    await client.life.JoinGroup(worker_pb2.JoinGroupRequest(rank=0, group=alone))
    [*_, last] = await client.load(tiny_llama[0])

    assert last.model.weights_size_bytes == whole.model.weights_size_bytes


async def test_a_rank_does_not_wait_for_a_group_that_another_one_has_replaced(client, tmp_path):
    """A rank died while its group met; the engine core makes the others join the next group."""
    addresses = [f"unix:{tmp_path}/{number}" for number in range(2)]
    groups = [
        worker_pb2.WorkerGroup(tensor_parallel_size=2, pipeline_parallel_size=1, group_epoch=1, addresses=addresses),
        worker_pb2.WorkerGroup(tensor_parallel_size=1, pipeline_parallel_size=1, group_epoch=2, addresses=addresses[:1]),
    ]
    requests = [worker_pb2.JoinGroupRequest(rank=0, group=group, timeout_s=60.0) for group in groups]
    first = client.life.JoinGroup(requests[0])

    async with asyncio.timeout(20):
        info = worker_pb2.WorkerLifecycleServiceGetInfoRequest()
        while (await client.life.GetInfo(info)).group != groups[0]:  # noqa: ASYNC110 - a worker announces no group
            await asyncio.sleep(0.01)
        await client.life.JoinGroup(requests[1])

    assert (await error_of(first)).code is Code.UNAVAILABLE


async def test_the_same_group_again_is_no_order(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    addresses = [f"unix:{tmp_path}/{number}" for number in range(2)]
    pair = worker_pb2.WorkerGroup(tensor_parallel_size=2, pipeline_parallel_size=1, group_epoch=1, addresses=addresses)
    joins = [worker_pb2.JoinGroupRequest(rank=rank, group=pair, timeout_s=10.0) for rank in range(2)]
    async with connect(tmp_path / "a") as first, connect(tmp_path / "b") as second:
        await asyncio.gather(first.life.JoinGroup(joins[0]), second.life.JoinGroup(joins[1]))

        await first.life.JoinGroup(joins[0], timeout=5)  # without the other rank

        joins[0].group.group_epoch = 2
        joins[0].timeout_s = 0.05
        assert (await error_of(first.life.JoinGroup(joins[0]))).code is Code.DEADLINE_EXCEEDED
        assert (await error_of(first.life.JoinGroup(joins[0]))).code is Code.DEADLINE_EXCEEDED


async def test_it_announces_what_it_supports_where_its_stream_begins_and_in_its_info(client, tiny_llama):
    await client.get_ready(tiny_llama[0])

    call = client.work.Execute()
    await call.write(worker_pb2.ExecuteRequest(hello=worker_pb2.ExecuteHello(schema_revision=SCHEMA_REVISION, epoch=1)))
    ready = (await call.read()).ready
    info = await client.life.GetInfo(worker_pb2.WorkerLifecycleServiceGetInfoRequest())
    call.cancel()

    assert types_pb2.CAPABILITY_SHARED_SAMPLING_PARAMS in ready.capabilities
    assert (list(info.capabilities), info.contract_revision) == (list(ready.capabilities), CONTRACT_REVISION)
    assert ready.contract_revision == CONTRACT_REVISION


async def test_adapters_are_refused_unless_the_model_was_loaded_for_them(client, tiny_llama):
    await client.load(tiny_llama[0])
    lora = types_pb2.LoraRequest(name="a", id=1, path="/nowhere")
    for call in (
        client.life.LoadLora(worker_pb2.WorkerLifecycleServiceLoadLoraRequest(lora=lora)),
        client.life.UnloadLora(worker_pb2.WorkerLifecycleServiceUnloadLoraRequest(id=1)),
    ):
        assert (await error_of(call)).code is Code.UNIMPLEMENTED


async def test_collective_methods_are_only_those_registered(client):
    call = worker_pb2.WorkerLifecycleServiceCollectiveRpcRequest

    assert (await client.life.CollectiveRpc(call(method="get_num_requests"))).result_json == "0"
    assert isinstance(await error_of(client.life.CollectiveRpc(call(method="os.system", args_json='["true"]'))), NotFound)
    deep = await error_of(client.life.CollectiveRpc(call(method="get_pid", args_json="[" * 2000)))
    assert "args_json is not JSON" in deep.message
    error = await error_of(client.life.CollectiveRpc(call(method="get_pid", args_json="[1]")))
    assert error.code is Code.INVALID_ARGUMENT


async def test_profile_is_written(client, tiny_llama, tmp_path):
    await client.load(tiny_llama[0])
    await client.initialize()
    await client.life.StartProfile(worker_pb2.WorkerLifecycleServiceStartProfileRequest(prefix="run"))
    async for _ in client.life.WarmUp(worker_pb2.WarmUpRequest()):
        pass

    path = (await client.life.StopProfile(worker_pb2.WorkerLifecycleServiceStopProfileRequest())).path

    assert '"name": "layers"' in (tmp_path / "profiles" / path.rpartition("/")[2]).read_text()


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


async def test_a_worker_announces_its_logits_processors_and_gives_them_extra_args(tmp_path, tiny_llama):
    name = "tests.worker_svc.sampler.custom_processors:Target"
    params = types_pb2.SamplingParams(temperature=0)
    params.extra_args.update({"target": 40})
    async with connect(tmp_path, logits_processors=(name,)) as client:
        await client.get_ready(tiny_llama[0])
        stream = await client.open_stream()
        await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1, sampling_params=params)]))

        assert list((await client.info()).logits_processors) == [name]
        assert (await read_tokens(stream))[1] == {3: 40}


async def test_an_extra_arg_that_json_has_no_form_for_fails_its_request_alone(tmp_path, tiny_llama):
    params = types_pb2.SamplingParams(temperature=0)
    params.extra_args.update({"target": float("nan")})
    async with connect(tmp_path, logits_processors=("tests.worker_svc.sampler.custom_processors:Target",)) as client:
        await client.get_ready(tiny_llama[0])
        stream = await client.open_stream()
        await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1, sampling_params=params), new(4, [5, 6, 7], 2)]))

        output = (await stream.read()).output

    assert ["target must be an int, got nan" in failure.status.message for failure in output.failures] == [True]
    assert unpack_u32(output.handles) == [4]


async def test_a_worker_without_logits_processors_refuses_extra_args(client, tiny_llama):
    params = types_pb2.SamplingParams(temperature=0)
    params.extra_args.update({"target": 40})
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1, sampling_params=params), new(4, [5, 6, 7], 2)]))

    output = (await stream.read()).output

    assert [failure.handle for failure in output.failures] == [3]
    assert "does not support extra_args" in output.failures[0].status.message
    assert unpack_u32(output.handles) == [4]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"logits_processors": ("no_such_module:Class",)}, "no_such_module:Class cannot be used: it cannot be imported"),
        ({"logits_processors": ("json:JSONDecoder",), "device": "sim"}, "logits_processors need a device with logits"),
    ],
)
async def test_a_worker_that_cannot_apply_its_logits_processors_does_not_start(tmp_path, settings, text):
    with pytest.raises(FailedPrecondition, match=text):
        async with connect(tmp_path, **settings):
            pass
