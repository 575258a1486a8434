"""Two engine cores with real workers: a producer computes prompts, a consumer reads their blocks and goes on."""

import asyncio
import contextlib

import pytest
from pydantic import ValidationError

from benchmarks.stack import free_ports
from tests.certificates import Authority
from tests.e2e.tiny_model import save_tiny_model
from tests.kv_transfer.engines import BLOCK, Engine, decode, num_fetched, pair, params, prefill
from tests.worker_svc.families.tiny_models import save_family
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.services.errors import Unsupported
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


async def test_blocks_move_between_machines_under_mutual_tls(tmp_path, model):
    """A peer without a certificate of the authority reads nothing."""
    office, elsewhere = (Authority(tmp_path, name) for name in ("office", "elsewhere"))
    ports = free_ports(3)
    async with contextlib.AsyncExitStack() as running:
        clients = []
        for name, port, authority in zip(("producer", "consumer", "stranger"), ports, (office, office, elsewhere), strict=True):
            tls = authority.certificate(name).settings
            role = "producer" if name == "producer" else "consumer"
            worker = {"listen": f"127.0.0.1:{port}"} | tls
            engine = Engine(tmp_path / name, model, role, worker=worker, kv_peers=("127.0.0.1:*",), **tls)
            running.push_async_callback(engine.close)
            engine.start_worker()
            engine.start_engine()
            clients.append(await engine.client())
        producer, consumer, stranger = clients
        wanted = await decode(producer, 1, PROMPT)

        assert await decode(consumer, 1, PROMPT, await prefill(producer, 2, PROMPT)) == wanted
        assert num_fetched(consumer, 1) == 6 * BLOCK
        assert await decode(stranger, 1, PROMPT, await prefill(producer, 3, PROMPT)) == wanted
        assert num_fetched(stranger, 1) == 0


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


async def test_a_transfer_ends_with_the_request_that_waits_for_it(tmp_path, model):
    """The other worker takes connections and never answers; the transfer's own time is an hour."""
    asked, has_ended = asyncio.Event(), asyncio.Event()

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            asked.set()
            await has_ended.wait()

    (tmp_path / "silent").mkdir()
    silent = await asyncio.start_unix_server(hold, tmp_path / "silent" / "worker")
    async with silent, pair(tmp_path, model, kv_lease_s=3600) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, PROMPT)
        source.remote_host = f"unix:{tmp_path}/silent/worker"
        second.add(1, PROMPT, sampling_params=params(), kv_transfer=source)
        async with asyncio.timeout(20):
            await asked.wait()

        second.abort("r1")

        await consumer.until_all_blocks_are_free()
        has_ended.set()


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


@pytest.mark.parametrize(
    ("worker", "settings"),
    [
        ({"cpu_kernels": "torch"}, {}),
        ({"kv_cache_dtype": "int8"}, {}),
        ({"kv_cache_dtype": "float16"}, {"block_size": 32}),
        ({"device": "sim"}, {}),
    ],
    ids=["torch", "int8", "float16", "sim"],
)
async def test_every_layout_of_blocks_is_moved(tmp_path, model, worker, settings):
    async with pair(tmp_path, model, worker=worker, **settings) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, PROMPT)
        sampled = {"temperature": 0.7, "seed": 5}  # the simulated device's tokens depend on the seed alone
        tokens = await decode(second, 1, PROMPT, source, **sampled)
        assert num_fetched(second, 1) == source.remote_num_tokens > 0
        assert tokens == await decode(first, 2, PROMPT, **sampled)


async def test_latent_vectors_are_moved(tmp_path):
    save_family(tmp_path / "model", "deepseek_v3")
    async with pair(tmp_path, tmp_path / "model") as (producer, consumer):
        prompt = [token % 90 for token in PROMPT[:60]]
        first, second = await producer.client(), await consumer.client()
        source = await prefill(first, 1, prompt)
        tokens = await decode(second, 1, prompt, source)
        assert num_fetched(second, 1) == 3 * BLOCK
        assert tokens == await decode(first, 2, prompt)


async def test_workers_of_other_models_exchange_nothing(tmp_path, model):
    (tmp_path / "other").mkdir()
    other = save_tiny_model(tmp_path / "other", rope_theta=20000.0)
    async with pair(tmp_path, model) as (producer, consumer):
        stranger = Engine(tmp_path / "stranger", other, "consumer")
        stranger.start_worker()
        stranger.start_engine()
        first, second = await producer.client(), await stranger.client()
        source = await prefill(first, 1, PROMPT)
        tokens = await decode(second, 1, PROMPT, source)
        assert num_fetched(second, 1) == 0
        assert tokens == await decode(second, 2, PROMPT)
        await stranger.close()
        await consumer.client()


async def test_the_sequences_of_a_call_compute_the_prompt_if_their_transfer_fails(tmp_path, model):
    async with pair(tmp_path, model) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        wanted = await decode(first, 2, PROMPT)
        source = await prefill(first, 1, PROMPT)
        await producer.stop("worker")
        for handle in (1, 2, 3):
            second.add(handle, PROMPT, sampling_params=params(), kv_transfer=source, call_number=9)
        await second.until_finished(1, 2, 3)
        assert [second.tokens[handle] for handle in (1, 2, 3)] == [wanted] * 3


async def test_blocks_for_others_take_at_most_half_of_the_cache(tmp_path, model):
    async with pair(tmp_path, model, num_gpu_blocks_override=30, max_model_len=200, kv_lease_s=3600) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        kept = []
        for handle in range(1, 4):
            keeps = types_pb2.KvTransferParams(do_remote_decode=True)
            first.add(handle, [handle, *PROMPT], sampling_params=params(max_tokens=1), kv_transfer=keeps)
            await first.until_finished(handle)
            kept.append(first.finished[handle].HasField("kv_transfer"))
        assert kept == [True, True, False]
        await decode(second, 1, [1, *PROMPT], first.finished[1].kv_transfer)
        await prefill(first, 4, [4, *PROMPT])


async def test_aborted_requests_leave_no_blocks_behind(tmp_path, model):
    async with pair(tmp_path, model, kv_lease_s=3600) as (producer, consumer):
        first, second = await producer.client(), await consumer.client()
        for number in range(8):
            source = await prefill(first, number, [number, *PROMPT])
            for handle in range(2):
                name = f"{number}.{handle}"
                second.add(10 * number + handle, [number, *PROMPT], request_id=name, kv_transfer=source, call_number=1 + number)
            second.abort(f"{number}.{number % 2}")
            await second.until_finished(10 * number + 1 - number % 2)
        await producer.until_all_blocks_are_free()
        await consumer.until_all_blocks_are_free()


async def test_a_model_with_sliding_windows_cannot_move_blocks(tmp_path):
    save_family(tmp_path / "model", "gemma3")
    engine = Engine(tmp_path / "engine", tmp_path / "model", "producer")
    engine.start_worker()
    engine.start_engine()
    with pytest.raises(Unsupported, match="kv-role needs a model whose layers all keep the keys and values of every token"):
        await engine.until_ended()
    await engine.close()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"enable_prefix_caching": False}, "kv_role producer needs enable_prefix_caching"),
        ({"tensor_parallel_size": 2, "worker_target": "a:1,b:1"}, "kv_role producer needs a model on one worker"),
        (
            {"speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}'},
            "kv_role producer moves no blocks of a drafter; speculative_config has method mtp",
        ),
    ],
    ids=["no prefix cache", "two ranks", "drafter"],
)
def test_settings_that_leave_blocks_behind_are_refused(settings, problem):
    with pytest.raises(ValidationError, match=problem):
        EngineCoreSettings(kv_role="producer", **settings)
