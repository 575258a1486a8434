"""Two engine cores with real workers: a producer computes prompts, a consumer reads their blocks and goes on."""

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.kv_transfer.engines import BLOCK, decode, num_fetched, pair, params, prefill
from tetrad.v1 import types_pb2

PROMPT = [(7 * number) % 250 for number in range(6 * BLOCK + 5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


async def test_tokens_are_those_of_one_engine(tmp_path, model):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, PROMPT)
        assert source.do_remote_prefill
        assert source.remote_num_tokens == 6 * BLOCK
        tokens = await decode(second, 1, PROMPT, source)
        assert num_fetched(second, 1) == 6 * BLOCK
        assert tokens == await decode(first, 2, PROMPT)
        await producer.until_all_blocks_are_free()
        await consumer.until_all_blocks_are_free()


async def test_sampled_tokens_are_those_of_one_engine(tmp_path, model):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, PROMPT)
        wanted = await decode(first, 2, PROMPT, temperature=1.0, seed=3)
        assert await decode(second, 1, PROMPT, source, temperature=1.0, seed=3) == wanted


async def test_only_blocks_that_the_consumer_lacks_are_fetched(tmp_path, model):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        await decode(second, 1, PROMPT[: 2 * BLOCK + 1])
        source = await prefill(first, 1, PROMPT)
        tokens = await decode(second, 2, PROMPT, source)
        assert num_fetched(second, 2) == 4 * BLOCK
        assert tokens == await decode(first, 2, PROMPT)


async def test_blocks_are_given_back_when_the_consumer_has_them(tmp_path, model):
    async with pair(tmp_path, model, kv_lease_s=3600) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        await decode(second, 1, PROMPT)
        source = await prefill(first, 1, PROMPT)
        await decode(second, 2, PROMPT, source)
        assert num_fetched(second, 2) == 0
        await producer.until_all_blocks_are_free()


async def test_the_sequences_of_a_call_wait_for_one_transfer(tmp_path, model):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, PROMPT)
        for handle in (1, 2, 3):
            sampled = params(temperature=1.0, seed=handle)
            second.add(handle, PROMPT, sampling_params=sampled, kv_transfer=source, call_number=9)
        await second.until_finished(1, 2, 3)
        assert [num_fetched(second, handle) for handle in (1, 2, 3)] == [6 * BLOCK] * 3
        for handle in (1, 2, 3):
            assert second.tokens[handle] == await decode(first, 10 + handle, PROMPT, temperature=1.0, seed=handle)


async def test_another_prompt_gets_no_foreign_blocks(tmp_path, model):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, PROMPT)
        other = [token + 1 for token in PROMPT]
        tokens = await decode(second, 1, other, source)
        assert num_fetched(second, 1) == 0
        assert tokens == await decode(first, 2, other)


async def test_blocks_that_nobody_reads_are_freed(tmp_path, model):
    async with pair(tmp_path, model, kv_lease_s=0.5) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, PROMPT)
        await producer.until_all_blocks_are_free()
        tokens = await decode(second, 1, PROMPT, source)
        assert num_fetched(second, 1) == 0
        assert tokens == await decode(first, 2, PROMPT)


@pytest.mark.parametrize("victim", ["worker", "engine"])
async def test_a_producer_that_ends_costs_only_time(tmp_path, model, victim):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        wanted = await decode(first, 2, PROMPT)
        source = await prefill(first, 1, PROMPT)
        await producer.stop(victim)
        assert await decode(second, 1, PROMPT, source) == wanted


async def test_a_consumer_whose_worker_ends_computes_the_prompt(tmp_path, model):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, PROMPT)
        second.add(1, PROMPT, sampling_params=params(max_tokens=200), kv_transfer=source)
        while not second.tokens.get(1):
            await second.read()
        await consumer.stop("worker")
        consumer.start_worker()
        await second.until_finished(1)
        assert second.tokens[1] == await decode(first, 2, PROMPT, max_tokens=200)


async def test_an_engine_core_without_the_role_refuses(tmp_path, model):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        second.add(1, PROMPT, kv_transfer=types_pb2.KvTransferParams(do_remote_decode=True))
        first.add(1, PROMPT, kv_transfer=await prefill(first, 2, PROMPT))
        for client in (first, second):
            while not client.rejected:
                await client.read()
        assert "kv-role producer" in second.rejected["r1"].message
        assert "kv-role consumer" in first.rejected["r1"].message


async def test_only_allowed_addresses_are_read(tmp_path, model):
    async with pair(tmp_path, model, kv_peers=("unix:/elsewhere/*", "10.0.0.?:50053")) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        second.add(1, PROMPT, kv_transfer=await prefill(first, 1, PROMPT))
        while not second.rejected:
            await second.read()
        assert "kv-peers allows unix:/elsewhere/*, 10.0.0.?:50053" in second.rejected["r1"].message
