"""KV groups over the worker's gRPC API: one block table for each group, and groups or tables that do not fit the model."""

import pytest

from tests.worker_svc.service_client import error_of, new, read_tokens, step
from tetrad.services.errors import FailedPrecondition
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import worker_pb2


@pytest.fixture
def mixed_windows(tmp_path, save_tiny_model):
    """A model of three KV groups: a layer that sees all keys, and two with a window, each a group."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    changes = {"sliding_window": 24, "use_sliding_window": True, "layer_types": kinds}
    save_tiny_model(tmp_path, "Qwen2ForCausalLM", changes)
    return tmp_path


async def test_plans_have_a_block_table_for_each_group_of_layers(client, mixed_windows):
    await client.load(mixed_windows)
    groups = (await client.life.GetKvCacheSpec(worker_pb2.GetKvCacheSpecRequest(block_size=16))).groups
    await client.initialize(groups=groups)
    stream = await client.open_stream()
    request = new(3, [5, 6, 7], 1)
    request.block_ids.extend([pack_u32([2]), pack_u32([3])])
    await stream.write(step(1, new_requests=[request]))

    assert 3 in (await read_tokens(stream))[1]
    assert [(list(group.layers), group.sliding_window) for group in groups] == [([1], 0), ([0], 24), ([2], 24)]

    await stream.write(step(2, new_requests=[new(4, [5, 6, 7], 4)]))
    assert "has 1 block tables per request; the model has 3 KV groups" in (await error_of(stream.read())).message


@pytest.mark.parametrize("change", ["none", "fewer", "another window"])
async def test_groups_other_than_the_models_are_refused(client, mixed_windows, change):
    """An engine core keeps the groups of its first worker; another worker may be of another release."""
    await client.load(mixed_windows)
    groups = list((await client.life.GetKvCacheSpec(worker_pb2.GetKvCacheSpecRequest(block_size=16))).groups)
    groups[-1].sliding_window = 25 if change == "another window" else 24
    given = {"none": [], "fewer": groups[:2], "another window": groups}[change]

    error = await error_of(client.initialize(groups=given))

    assert isinstance(error, FailedPrecondition)
    assert f"block tables for {len(given) or 1} KV groups; the model's layers form 3" in error.message


async def test_tables_of_different_lengths_end_the_stream(client, mixed_windows):
    await client.load(mixed_windows)
    await client.initialize(groups=(await client.life.GetKvCacheSpec(worker_pb2.GetKvCacheSpecRequest(block_size=16))).groups)
    stream = await client.open_stream()
    request = new(3, [5, 6, 7], 1)
    request.block_ids.extend([pack_u32([2, 4]), pack_u32([3])])
    await stream.write(step(1, new_requests=[request]))

    assert "different lengths: [4, 8] bytes" in (await error_of(stream.read())).message
