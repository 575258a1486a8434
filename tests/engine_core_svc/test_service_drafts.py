"""Drafts over gRPC: a worker that verifies them, and one that does not."""

import json
import random

import pytest
from structlog.testing import capture_logs

from tests.engine_core_svc.fake_worker import VOCAB_SIZE, expected
from tests.engine_core_svc.scheduler.fake_drafts import GuessedDrafts, SameDrafts
from tests.engine_core_svc.service_fakes import Stack
from tetrad.services.errors import InvalidRequest
from tetrad.v1 import types_pb2


def next_token(key, length):
    """Return the right token of a request with one prompt token: it has key 1, 2, ... in order of arrival, and that prompt."""
    return (key + length) % VOCAB_SIZE


@pytest.fixture
async def drafting_stack(directory):
    drafts = GuessedDrafts(random.Random(1), 4, next_token, wrong_ids=[900])
    async with Stack(directory, drafts=drafts) as stack:
        stack.worker.verifies_drafts = True
        yield stack


async def test_tokens_are_those_of_a_run_without_drafts_and_take_fewer_steps(drafting_stack):
    client = await drafting_stack.client()

    for handle in range(1, 9):
        client.add(handle, [handle], max_tokens=40)
    await client.until_finished(*range(1, 9))

    assert all(client.tokens[handle] == expected(handle, 40) for handle in range(1, 9))
    load = await drafting_stack.until_idle()
    assert drafting_stack.worker.num_steps < 40
    assert 0 < load.stats.num_accepted_tokens < load.stats.num_draft_tokens


async def test_a_lost_worker_costs_no_token(drafting_stack):
    client = await drafting_stack.client()
    for handle in (1, 2):
        client.add(handle, [handle], max_tokens=100)
    while min(len(client.tokens.get(handle, ())) for handle in (1, 2)) < 10:
        await client.read()

    drafting_stack.worker.crashed.set()
    await client.until_finished(1, 2)

    assert all(client.tokens[handle] == expected(handle, 100) for handle in (1, 2))
    assert "RECOVERED" in client.notices


async def test_an_abort_while_drafts_are_verified_frees_every_block(drafting_stack):
    client = await drafting_stack.client()
    for handle in (1, 2):
        client.add(handle, [handle], max_tokens=200)
    while len(client.tokens.get(1, ())) < 10:
        await client.read()

    client.abort("r1")
    await client.until_finished(2)

    assert client.tokens[2] == expected(2, 200)
    await drafting_stack.until_idle()


async def test_a_worker_that_announces_no_drafts_gets_none(directory):
    with capture_logs() as logs:
        async with Stack(directory, drafts=SameDrafts(5)) as stack:
            client = await stack.client()
            client.add(1, [1], max_tokens=20)
            await client.until_finished(1)

    assert client.tokens[1] == expected(1, 20)
    assert not any(step.HasField("draft_tokens") for step in stack.worker.seen)
    [entry] = [entry for entry in logs if entry["event"] == "drafts.off"]
    assert entry["reason"] == "The worker does not announce that it verifies draft tokens."


async def test_constrained_text_is_that_of_a_run_without_drafts(directory, tokenizer_json):
    """The fake worker takes the next id that a mask allows, so guesses of letters and digits are often right."""
    params = types_pb2.SamplingParams(
        max_tokens=60, structured_outputs=types_pb2.StructuredOutputs(regex="([a-c]{1,4}-[0-3]{2};){1,5}")
    )
    tokens, num_accepted = [], []
    guess = random.Random(3)
    for drafts in (None, GuessedDrafts(guess, 3, lambda _key, _length: guess.randrange(3, 120))):
        async with Stack(directory, tokenizer_json, drafts=drafts) as stack:
            stack.worker.verifies_drafts = True
            client = await stack.client()
            for handle in range(4):
                client.add(handle, [10 + handle], sampling_params=params)
            await client.until_finished(*range(4))
            tokens.append({handle: list(client.tokens[handle]) for handle in range(4)})
            num_accepted.append((await stack.until_idle()).stats.num_accepted_tokens)

    assert tokens[0] == tokens[1]
    assert all(tokens[0].values())
    assert num_accepted[0] == 0 < num_accepted[1]


@pytest.mark.parametrize(
    "config",
    [
        {"method": "ngram", "num_speculative_tokens": 3},
        {"method": "mtp", "num_speculative_tokens": 3},
    ],
)
async def test_a_worker_that_keeps_no_states_is_refused_drafts_in_one_line(directory, config):
    said = "not supported for a model with states: those of a worker on fake cannot go back"
    stack = Stack(directory, speculative_config=json.dumps(config))
    stack.worker.verifies_drafts, stack.worker.kv_kind = True, types_pb2.KV_CACHE_KIND_STATE

    async with stack:
        with pytest.raises(InvalidRequest, match=said):
            await stack.serving
