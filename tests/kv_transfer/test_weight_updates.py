"""Updates of the weights of engine cores that move KV blocks: blocks go only to workers with the same weights."""

import json

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.kv_transfer.engines import BLOCK, Engine, decode, num_fetched, pair, prefill
from tests.weight_files import save_weights
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import engine_core_pb2_grpc

PROMPT = [(7 * number) % 250 for number in range(6 * BLOCK + 5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def weights(model, tmp_path_factory):
    return save_weights(model, tmp_path_factory.mktemp("new"), 2)


async def update(engine: Engine, path) -> None:
    async with open_channel(engine._settings.admin_listen) as channel:
        admin = engine_core_pb2_grpc.EngineCoreAdminServiceStub(channel)
        await admin.StartWeightUpdate(pb.StartWeightUpdateRequest())
        await admin.UpdateWeights(pb.UpdateWeightsRequest(update_info_json=json.dumps({"path": str(path)})))
        await admin.FinishWeightUpdate(pb.FinishWeightUpdateRequest(weight_version="new"))


async def test_engines_that_both_have_the_new_weights_exchange_blocks(tmp_path, model, weights):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        old = await decode(second, 1, PROMPT)
        await update(producer, weights)
        await update(consumer, weights)

        tokens = await decode(second, 2, PROMPT, await prefill(first, 1, PROMPT))

        assert num_fetched(second, 2) == 6 * BLOCK
        assert old != tokens == await decode(first, 2, PROMPT)


@pytest.mark.parametrize("updated", ["producer", "consumer"])
async def test_blocks_of_other_weights_are_not_read(tmp_path, model, weights, updated):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        await update(producer if updated == "producer" else consumer, weights)

        tokens = await decode(second, 1, PROMPT, await prefill(first, 1, PROMPT))

        assert num_fetched(second, 1) == 0
        assert tokens == await decode(second, 2, PROMPT) != await decode(first, 2, PROMPT)


async def test_blocks_that_were_kept_before_the_update_are_not_read_behind_it(tmp_path, model, weights):
    async with pair(tmp_path, model, kv_lease_s=3600) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, PROMPT)
        await update(producer, weights)
        await update(consumer, weights)

        tokens = await decode(second, 1, PROMPT, source)

        assert num_fetched(second, 1) == 0
        assert tokens == await decode(first, 2, PROMPT)
        await producer.until_all_blocks_are_free()
