"""A worker that sleeps and wakes up, over gRPC: the memory it releases, its state afterwards, and the order of waking."""

import shutil
import weakref

import pytest

from tests.worker_svc.service_client import connect, error_of, new, read_tokens, step
from tetrad.services.errors import FailedPrecondition, InvalidRequest
from tetrad.v1 import worker_pb2

SLEEPING, LOADED = worker_pb2.WORKER_STATE_SLEEPING, worker_pb2.WORKER_STATE_LOADED


async def sleep(client, level):
    await client.life.Sleep(worker_pb2.WorkerLifecycleServiceSleepRequest(level=level))


async def wake_up(client, *tags):
    """Return whether something still sleeps."""
    return (await client.life.WakeUp(worker_pb2.WorkerLifecycleServiceWakeUpRequest(tags=tags))).sleeping


async def first_token(client):
    async for _ in client.life.WarmUp(worker_pb2.WarmUpRequest()):
        pass
    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    _, tokens = await read_tokens(stream)
    await stream.done_writing()
    await stream.read()
    return tokens[3]


@pytest.mark.parametrize("level", [1, 2])
async def test_a_worker_that_woke_up_answers_as_before(client, tiny_llama, level):
    await client.get_ready(tiny_llama[0])
    before = await first_token(client)

    await sleep(client, level)
    asleep, ready = await client.info(), client.served.server.health.ready
    still_sleeps = await wake_up(client)
    awake = await client.info()

    assert (asleep.state, asleep.num_blocks, ready) == (SLEEPING, 0, False)
    assert asleep.HasField("model") == (level == 1)
    assert (still_sleeps, awake.state, awake.num_blocks) == (False, LOADED, 50)
    assert await first_token(client) == before
    assert client.served.server.health.ready


async def test_the_kv_cache_sleeps_alone(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    before = await first_token(client)
    runner, model = weakref.ref(client.served.worker.cache.runner), client.served.worker.weights.model

    await sleep(client, 3)
    asleep, is_freed = await client.info(), runner() is None
    assert await wake_up(client, "weights"), "the KV cache sleeps on"
    still_sleeps = await wake_up(client, "kv_cache")

    assert (asleep.state, asleep.num_blocks, is_freed) == (SLEEPING, 0, True)
    assert client.served.worker.weights.model is model
    assert (still_sleeps, (await client.info()).num_blocks) == (False, 50)
    assert await first_token(client) == before


async def test_a_model_with_several_kv_groups_wakes_up(client, tmp_path, save_tiny_model):
    changes = {"sliding_window": 24, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}
    save_tiny_model(tmp_path / "model", "Qwen2ForCausalLM", {"num_hidden_layers": 2, **changes})
    await client.load(tmp_path / "model")
    groups = (await client.life.GetKvCacheSpec(worker_pb2.GetKvCacheSpecRequest(block_size=16))).groups
    await client.initialize(groups=groups)

    await sleep(client, 1)
    still_sleeps = await wake_up(client)

    assert len(groups) == 2
    assert not still_sleeps
    assert (await client.info()).num_blocks == 50


async def test_the_kv_cache_is_freed_and_at_level_2_the_model_too(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    worker = client.served.worker
    runner, model = weakref.ref(worker.cache.runner), weakref.ref(worker.weights.model)

    await sleep(client, 2)

    assert (runner(), model()) == (None, None)


async def test_weights_may_come_back_before_the_kv_cache(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    await sleep(client, 1)

    assert isinstance(await error_of(wake_up(client, "kv_cache")), InvalidRequest)
    assert await wake_up(client, "weights")
    weights_only = await client.info()
    assert not await wake_up(client, "kv_cache")

    assert (weights_only.state, weights_only.num_blocks) == (SLEEPING, 0)
    assert (await client.info()).num_blocks == 50


async def test_weights_in_host_memory_come_back_although_their_files_are_gone(client, tmp_path, tiny_llama):
    await client.get_ready(shutil.copytree(tiny_llama[0], tmp_path / "model"))
    before = await first_token(client)

    await sleep(client, 1)
    shutil.rmtree(tmp_path / "model")
    await wake_up(client)

    assert await first_token(client) == before


async def test_loading_the_model_that_sleeps_wakes_its_weights(client, tiny_llama):
    """What an engine core does that is started while the worker sleeps."""
    await client.get_ready(tiny_llama[0])
    before = await first_token(client)
    await sleep(client, 2)

    await client.get_ready(tiny_llama[0])

    assert (await client.info()).state == worker_pb2.WORKER_STATE_READY
    assert await first_token(client) == before


async def test_another_model_may_be_loaded_into_a_sleeping_worker(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    await sleep(client, 1)

    await client.load(tiny_llama[0], random_weights=True)

    assert (await client.info()).state == LOADED


async def test_a_sleeping_worker_takes_no_plans(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    await sleep(client, 1)

    for call in (client.open_stream(), client.initialize()):
        error = await error_of(call)
        assert isinstance(error, FailedPrecondition)
        assert error.reason == "NOT_READY"


async def test_sleeping_twice_and_waking_twice_change_nothing(client, tiny_llama):
    await client.get_ready(tiny_llama[0])

    assert not await wake_up(client)
    await sleep(client, 1)
    await sleep(client, 2)
    assert (await client.info()).HasField("model")
    await wake_up(client)

    assert not await wake_up(client)


async def test_bad_orders_are_refused(client, tiny_llama):
    assert isinstance(await error_of(sleep(client, 1)), FailedPrecondition)  # there is nothing that could sleep
    await client.get_ready(tiny_llama[0])
    assert (await error_of(sleep(client, 4))).message == "level must be 1, 2 or 3, got 4."
    await sleep(client, 1)

    assert "'dreams'" in (await error_of(wake_up(client, "dreams"))).message


async def test_a_simulated_worker_sleeps_likewise(tmp_path, tiny_llama):
    async with connect(tmp_path, device="sim") as client:
        await client.get_ready(tiny_llama[0])
        before = await first_token(client)
        await sleep(client, 2)
        asleep = (await client.info()).state
        await wake_up(client)

        assert (asleep, await first_token(client)) == (SLEEPING, before)
