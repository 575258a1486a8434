"""Updates of a worker's weights over gRPC: loading, refusals, and the weights after a failure."""

import json
import shutil
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker_svc.service_client import connect, error_of, new, read_tokens, step
from tetrad.services.errors import InvalidRequest, ModelError, NotFound
from tetrad.v1 import worker_pb2

PROMPT = [5, 6, 7, 8]
DOWN_PROJECTION = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def other(tmp_path, tiny_llama):
    """A checkpoint of the same architecture with other weights."""
    return save_changed(tiny_llama[0], tmp_path / "other", lambda name, tensor: tensor.flip(0) if tensor.dim() > 1 else tensor)


def save_changed(own, directory, change):
    directory.mkdir()
    shutil.copy(own / "config.json", directory)
    tensors = {name: change(name, tensor) for name, tensor in load_file(own / "model.safetensors").items()}
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}, directory / "model.safetensors"
    )
    return directory


def source(path, update_id="1", **fields):
    return worker_pb2.WeightSource(path=str(path), update_id=update_id, **fields)


async def check(client, own, path):
    request = worker_pb2.WorkerLifecycleServiceUpdateWeightsRequest(
        update_info_json=json.dumps({"path": str(path)}), model=worker_pb2.LoadModelRequest(model=str(own))
    )
    return (await client.life.UpdateWeights(request)).files_digest


async def finish(client, version=""):
    await client.life.FinishWeightUpdate(worker_pb2.WorkerLifecycleServiceFinishWeightUpdateRequest(weight_version=version))


async def tokens(client):
    await client.initialize()
    async for _ in client.life.WarmUp(worker_pb2.WarmUpRequest()):
        pass
    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, PROMPT, 1)]))
    found = [(await read_tokens(stream))[1][3]]
    for number in range(2, 9):
        await stream.write(step(number, cached=[(3, len(PROMPT) + number - 2)]))
        found.append((await read_tokens(stream))[1][3])
    await stream.done_writing()
    await stream.read()
    return found


async def fresh_tokens(tmp_path, path, **options):
    (tmp_path / "fresh").mkdir()
    async with connect(tmp_path / "fresh") as client:
        await client.load(path, **options)
        return await tokens(client)


@pytest.mark.parametrize("quantization", ["", "int8"])
async def test_tokens_after_an_update_are_those_of_a_fresh_start(client, tmp_path, tiny_llama, other, quantization):
    await client.load(tiny_llama[0], quantization=quantization)
    before = await tokens(client)

    digest = await check(client, tiny_llama[0], other)
    await client.load(tiny_llama[0], quantization=quantization, weights=source(other, files_digest=digest))
    await finish(client, "step-1")

    after = await tokens(client)
    assert after == await fresh_tokens(tmp_path, other, quantization=quantization)
    assert after != before
    model = (await client.info()).model
    assert (model.weight_version, model.weights.path, model.weights.update_id) == ("step-1", str(other), "1")


async def test_a_directory_with_weights_alone_is_enough(client, tmp_path, tiny_llama, other):
    await client.load(tiny_llama[0])
    (other / "config.json").unlink()

    await check(client, tiny_llama[0], other)
    await client.load(tiny_llama[0], weights=source(other))

    shutil.copy(tiny_llama[0] / "config.json", other)
    assert await tokens(client) == await fresh_tokens(tmp_path, other)


async def test_the_weights_before_are_there_again_until_the_update_is_finished(client, tiny_llama, other):
    """What an engine core does if another rank of the group has failed."""
    await client.load(tiny_llama[0])
    before = await tokens(client)
    await client.load(tiny_llama[0], weights=source(other))
    unfinished = (await client.info()).model

    await client.load(tiny_llama[0])

    assert not unfinished.HasField("weights")
    assert await tokens(client) == before


async def test_a_finished_update_frees_the_weights_before_it(client, tiny_llama, other):
    await client.load(tiny_llama[0])
    model = weakref.ref(client.served.worker.weights.model)
    await client.load(tiny_llama[0], weights=source(other))

    assert model() is not None
    await finish(client)

    assert model() is None


async def test_the_same_path_is_read_again_for_another_update(client, tmp_path, tiny_llama, other):
    await client.load(tiny_llama[0], weights=source(other, "1"))
    first = await tokens(client)
    shutil.copy(tiny_llama[0] / "model.safetensors", other)

    await client.load(tiny_llama[0], weights=source(other, "1"))
    same = await tokens(client)
    await client.load(tiny_llama[0], weights=source(other, "2"))

    assert same == first
    assert await tokens(client) == await fresh_tokens(tmp_path, tiny_llama[0])


async def test_files_that_change_later_do_not_change_the_fingerprint(client, tiny_llama, other):
    """Blocks are exchanged with workers of the same fingerprint alone: trainers write the next weights to the same place."""
    await client.load(tiny_llama[0], weights=source(other))
    await client.initialize()
    before = client.served.worker.cache.fingerprint
    shutil.copy(tiny_llama[0] / "model.safetensors", other)

    await client.initialize(num_blocks=60)
    same = client.served.worker.cache.fingerprint
    await client.load(tiny_llama[0], weights=source(other, "2"))
    await client.initialize(num_blocks=60)

    assert same == before
    assert client.served.worker.cache.fingerprint != before


async def test_files_that_changed_since_the_check_are_refused_and_the_weights_stay(client, tiny_llama, other):
    await client.load(tiny_llama[0])
    before = await tokens(client)
    digest = await check(client, tiny_llama[0], other)
    shutil.copy(tiny_llama[0] / "model.safetensors", other)

    error = await error_of(client.load(tiny_llama[0], weights=source(other, files_digest=digest)))

    assert isinstance(error, ModelError)
    assert "have changed since the update" in error.message
    assert await tokens(client) == before


async def test_missing_files_are_refused(client, tmp_path, tiny_llama):
    await client.load(tiny_llama[0])
    (tmp_path / "empty").mkdir()

    assert isinstance(await error_of(check(client, tiny_llama[0], tmp_path / "nowhere")), NotFound)
    assert "lacks any *.safetensors" in (await error_of(check(client, tiny_llama[0], tmp_path / "empty"))).message
    unnamed = worker_pb2.WorkerLifecycleServiceUpdateWeightsRequest(update_info_json='{"names": []}')
    assert isinstance(await error_of(client.life.UpdateWeights(unnamed)), InvalidRequest)


async def test_another_shape_is_refused_with_the_tensor_and_both_shapes(client, tmp_path, tiny_llama):
    await client.load(tiny_llama[0])
    shape = tuple(load_file(tiny_llama[0] / "model.safetensors")[DOWN_PROJECTION].shape)
    wider = save_changed(
        tiny_llama[0], tmp_path / "wider", lambda name, tensor: torch.zeros(3, 5) if name == DOWN_PROJECTION else tensor
    )
    lacking = save_changed(
        tiny_llama[0], tmp_path / "lacking", lambda name, tensor: None if name == DOWN_PROJECTION else tensor
    )

    for found in (await error_of(check(client, tiny_llama[0], wider)), await error_of(check(client, tiny_llama[0], lacking))):
        assert isinstance(found, ModelError)
        assert DOWN_PROJECTION in found.message
        assert str(shape) in found.message
    assert "(3, 5)" in (await error_of(check(client, tiny_llama[0], wider))).message


async def test_a_truncated_file_is_refused(client, tiny_llama, other):
    await client.load(tiny_llama[0])
    data = (other / "model.safetensors").read_bytes()
    (other / "model.safetensors").write_bytes(data[: len(data) // 2])

    error = await error_of(check(client, tiny_llama[0], other))

    assert isinstance(error, ModelError)
    assert "is not a whole safetensors file" in error.message


async def test_another_config_is_refused_by_the_value_that_differs(client, tiny_llama, other):
    await client.load(tiny_llama[0])
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.25}))

    message = (await error_of(check(client, tiny_llama[0], other))).message
    assert message == f"{other} has a config with norm_eps 0.25, but that of the served model is 1e-05."


async def test_a_failed_load_leaves_the_weights_before(client, tmp_path, tiny_llama):
    """Without the check, whose headers would have shown it."""
    await client.load(tiny_llama[0])
    before = await tokens(client)
    lacking = save_changed(
        tiny_llama[0], tmp_path / "lacking", lambda name, tensor: None if name == DOWN_PROJECTION else tensor
    )

    error = await error_of(client.load(tiny_llama[0], weights=source(lacking)))

    assert "no tensor" in error.message
    await client.load(tiny_llama[0])
    assert await tokens(client) == before


@pytest.mark.parametrize("level", [1, 2])
async def test_a_worker_that_sleeps_wakes_up_with_the_new_weights(client, tmp_path, tiny_llama, other, level):
    await client.get_ready(tiny_llama[0])
    await client.life.Sleep(worker_pb2.WorkerLifecycleServiceSleepRequest(level=level))

    await client.load(tiny_llama[0], weights=source(other))
    asleep = (await client.info()).state
    await client.life.WakeUp(worker_pb2.WorkerLifecycleServiceWakeUpRequest())

    assert asleep == worker_pb2.WORKER_STATE_SLEEPING
    assert await tokens(client) == await fresh_tokens(tmp_path, other)
