"""Drafts from the engine core to real workers and back, over gRPC: the tokens are those of a run without, in fewer steps."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.engine_core_svc.scheduler.fake_drafts import GuessedDrafts
from tests.engine_core_svc.service_fakes import WAIT_S, Client
from tests.mtp_files import save_mtp
from tests.worker_svc.conftest import save_tiny, tiny_config
from tetrad.engine_core_svc import service as engine_core
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.scheduler.drafts.rate_comparison import RateComparison
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import pack_u32, unpack_f32
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import engine_core_pb2_grpc, types_pb2
from tetrad.worker_svc import service as worker
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.devices.cpu import CpuDevice

NUM_TOKENS = 40
PARAMS = [
    types_pb2.SamplingParams(max_tokens=NUM_TOKENS, seed=1, logprobs=2),
    types_pb2.SamplingParams(max_tokens=NUM_TOKENS, seed=2, temperature=0.7, top_k=30, presence_penalty=1.0),
    types_pb2.SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, min_tokens=5, stop_token_ids=[20, 21, 22]),
    types_pb2.SamplingParams(max_tokens=NUM_TOKENS, seed=3),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    save_tiny(directory, tiny_config("LlamaForCausalLM"))
    return directory


@asynccontextmanager
async def served(model, directory, device, drafts=None, **options) -> AsyncIterator[Client]:
    """Run a worker and an engine core; yield a session. Few KV blocks, so that requests are preempted."""
    worker_target, target = f"unix:{directory}/worker", f"unix:{directory}/engine"
    worker_settings = WorkerSettings(listen=worker_target, device=device, threads=1)
    settings = EngineCoreSettings(
        listen=target, admin_listen="", worker_target=worker_target, tokenizer_targets=(), model=str(model),
        num_gpu_blocks_override=12, block_size=8, max_model_len=64, **options,
    )  # fmt: skip
    shutdown = asyncio.Event()
    running = [
        asyncio.create_task(worker.serve(worker_settings, shutdown)),
        asyncio.create_task(engine_core.serve(settings, shutdown, drafts=drafts)),
    ]
    channel = open_channel(target)
    try:
        yield await _open_session(engine_core_pb2_grpc.EngineCoreServiceStub(channel), running)
    finally:
        shutdown.set()
        await channel.close()
        await asyncio.wait(running, timeout=WAIT_S)
        await asyncio.gather(*running)


async def _open_session(stub, running) -> Client:
    while True:
        with contextlib.suppress(Exception):
            return await Client(stub).start()
        for task in running:
            assert not task.done(), task.exception()
        await asyncio.sleep(0.05)


async def generate(client) -> tuple[dict[int, list[int]], pb.SchedulerStats]:
    for handle, params in enumerate(PARAMS, 1):
        client.add(handle, [handle, 7, 9], sampling_params=params)
    await client.until_finished(*range(1, len(PARAMS) + 1))
    stats = [message.scheduler_stats for message in client.messages if message.HasField("scheduler_stats")]
    return {handle: list(tokens) for handle, tokens in client.tokens.items()}, stats[-1]


@pytest.mark.parametrize("device", ["sim", "cpu"])
async def test_tokens_are_those_of_a_run_without_drafts(model, tmp_path, device):
    async with served(model, tmp_path, device) as client:
        expected, plain_stats = await generate(client)
    known = {handle: [handle, 7, 9, *tokens] for handle, tokens in expected.items()}
    guess = lambda key, place: known[key][place] if place < len(known[key]) else 0  # noqa: E731 - one line

    async with served(model, tmp_path, device, GuessedDrafts(random.Random(1), 4, guess)) as client:
        found, stats = await generate(client)

    assert found == expected
    assert stats.num_preemptions > 0
    assert plain_stats.num_drafts == 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    assert stats.step_counter < plain_stats.step_counter


LOOKUPS = [
    {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    {"method": "suffix"},
]
REPETITIVE = [
    types_pb2.SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, logprobs=3),
    types_pb2.SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, logit_bias={9: 50.0}, min_tokens=3),
    types_pb2.SamplingParams(max_tokens=NUM_TOKENS, seed=4, temperature=1.0, top_p=0.02, logprobs=1),
    types_pb2.SamplingParams(max_tokens=NUM_TOKENS, seed=5, temperature=1.0, top_p=0.9, frequency_penalty=0.5),
    types_pb2.SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, repetition_penalty=1.01),
]


async def generate_repetitive(client):
    """Return tokens, log-probabilities and stats of requests, first one alone and then all together."""
    for handles in ([1], range(2, 2 + 2 * len(REPETITIVE))):
        for handle in handles:
            params = REPETITIVE[handle % len(REPETITIVE)]
            client.add(handle, [handle % 3, 7, 9] * 5, sampling_params=params)
        await client.until_finished(*handles)
    logprobs = {}
    for message in client.messages:
        for output in message.outputs:
            if output.HasField("new_logprobs"):
                logprobs.setdefault(output.handle, []).extend(unpack_f32(output.new_logprobs.logprobs))
    stats = [message.scheduler_stats for message in client.messages if message.HasField("scheduler_stats")]
    return {handle: list(tokens) for handle, tokens in client.tokens.items()}, logprobs, stats[-1]


@pytest.mark.parametrize("config", LOOKUPS, ids=lambda config: config["method"])
async def test_tokens_and_logprobs_with_lookups_are_those_of_plain_decoding(model, tmp_path, config):
    async with served(model, tmp_path, "cpu") as client:
        expected, expected_logprobs, _ = await generate_repetitive(client)

    async with served(model, tmp_path, "cpu", speculative_config=json.dumps(config)) as client:
        found, logprobs, stats = await generate_repetitive(client)

    assert found == expected
    assert logprobs.keys() == expected_logprobs.keys()
    for handle, values in logprobs.items():
        assert values == pytest.approx(expected_logprobs[handle], abs=1e-4)
    assert stats.num_accepted_tokens > 0
    assert sum(stats.num_accepted_tokens_per_position) == stats.num_accepted_tokens


async def test_tokens_and_logprobs_with_an_mtp_layer_are_those_of_plain_decoding(tmp_path, monkeypatch):
    save_mtp(tmp_path, "deepseek")
    monkeypatch.setattr(RateComparison, "pays", lambda *_: True)
    async with served(tmp_path, tmp_path, "cpu") as client:
        expected, expected_logprobs, _ = await generate_repetitive(client)

    config = {"method": "mtp", "num_speculative_tokens": 2}
    async with served(tmp_path, tmp_path, "cpu", speculative_config=json.dumps(config)) as client:
        found, logprobs, stats = await generate_repetitive(client)

    assert found == expected
    for handle, values in logprobs.items():
        assert values == pytest.approx(expected_logprobs[handle], abs=1e-4)
    assert stats.num_draft_tokens > 0


async def test_an_engine_core_refuses_speculation_in_front_of_a_worker_that_verifies_no_drafts(model, tmp_path, monkeypatch):
    monkeypatch.setattr(CpuDevice, "verifies_drafts", False)

    with pytest.raises(InvalidRequest, match="speculative_config is not supported: a worker on cpu"):
        async with served(model, tmp_path, "cpu", speculative_config=json.dumps(LOOKUPS[1])):
            pass


async def test_a_prediction_brings_the_same_tokens_in_fewer_steps(model, tmp_path):
    prompt, greedy = [5, 7, 9], types_pb2.SamplingParams(max_tokens=NUM_TOKENS, seed=6, temperature=0.8)
    async with served(model, tmp_path, "cpu") as client:
        client.add(1, prompt, sampling_params=greedy)
        await client.until_finished(1)
        expected = list(client.tokens[1])
        changed = [*expected[:20], 3, *expected[22:]]
        for handle, predicted in ((2, expected), (3, changed), (4, [4] * NUM_TOKENS)):
            client.add(handle, prompt, sampling_params=greedy, predicted_token_ids=pack_u32(predicted))
            await client.until_finished(handle)
        client.add(5, prompt, sampling_params=greedy, predicted_token_ids=pack_u32([1 << 20]))
        while not client.rejected:
            await client.read()

    stats = [message.scheduler_stats for message in client.messages if message.HasField("scheduler_stats")]
    assert [list(client.tokens[handle]) for handle in (2, 3, 4)] == [expected] * 3
    assert stats[-1].num_accepted_tokens > NUM_TOKENS // 2
    assert "1048576 is out of vocabulary" in client.rejected["r5"].message
