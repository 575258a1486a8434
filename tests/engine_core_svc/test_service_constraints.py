"""Structured outputs as clients of the engine core see them: real gRPC on both sides."""

import asyncio
import re
from contextlib import suppress

import grpc
import pytest

from tests.engine_core_svc.fake_worker import VOCAB_SIZE
from tests.engine_core_svc.service_fakes import WAIT_S
from tetrad.engine_core_svc.engine.engine import Engine
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import (
    types_pb2,
)


def constrained(max_tokens=40, **constraint):
    return types_pb2.SamplingParams(max_tokens=max_tokens, structured_outputs=types_pb2.StructuredOutputs(**constraint))


async def test_constrained_and_plain_requests_run_together(full_stack, vocabulary):
    client = await full_stack.client()

    for handle in range(3):
        client.add(handle, [10 + handle], sampling_params=constrained(regex="[a-z]{3}-[0-9]{3}"))
    client.add(7, [10, 11], max_tokens=30)
    await client.until_finished(0, 1, 2, 7)

    assert client.tokens[7] == list(range(12, 42))
    assert all(re.fullmatch(b"[a-z]{3}-[0-9]{3}", vocabulary.tokens.decode_bytes(client.tokens[h])) for h in range(3))
    assert all(client.finished[handle].finish_reason == types_pb2.FINISH_REASON_STOP for handle in range(3))
    assert full_stack.tokenizer.num_fetches == 1


async def test_a_request_that_meets_a_failed_engine_core_at_its_end_is_left_to_the_next_one(full_stack, monkeypatch):
    """The engine core compiles no grammar any more; the end of the session tells the frontend to go elsewhere."""
    client, close = await full_stack.client(), Engine.close

    async def close_and_get_a_request(engine):
        await close(engine)
        client.add(2, [10], sampling_params=constrained(regex="[a-z]{3}"))
        with suppress(AssertionError, grpc.RpcError):
            while not client.rejected:
                await client.read()

    monkeypatch.setattr(Engine, "close", close_and_get_a_request)
    monkeypatch.setattr("tetrad.engine_core_svc.scheduler.results.check_stop", lambda request: 1 / 0)
    client.add(1, [10])

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(asyncio.shield(full_stack.serving), WAIT_S)

    assert client.rejected == {}


async def test_workers_get_masks_and_not_constraints(full_stack):
    client = await full_stack.client()

    client.add(0, [10], sampling_params=constrained(choice=types_pb2.ChoiceList(choices=["ab"])))
    await client.until_finished(0)

    [new] = [new for step in full_stack.worker.seen for new in step.new_requests]
    assert not new.sampling_params.HasField("structured_outputs")
    assert all(step.grammar_bitmask.num_words == (VOCAB_SIZE + 31) // 32 for step in full_stack.worker.seen)


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ({"json_schema": '{"not": {"type": "string"}}'}, "keywords of JSON schema are not supported: not"),
        ({"regex": "["}, "unclosed character class"),
        ({"grammar": "nonsense"}, "neither Lark"),
        ({"structural_tag": "{}"}, "format of structural_tag"),
        ({"json_object": False}, "exactly one constraint"),
        ({}, "exactly one constraint"),
    ],
)
async def test_a_bad_constraint_is_rejected_alone(full_stack, constraint, text):
    client = await full_stack.client()

    client.add(0, [10], sampling_params=constrained(**constraint))
    client.add(1, [10], sampling_params=constrained(regex="ab"))
    await client.until_finished(1)
    while "r0" not in client.rejected:
        await client.read()

    error = client.rejected["r0"]
    assert isinstance(error, InvalidRequest)
    assert (error.field, text in error.message) == ("structured_outputs", True)
    assert 0 not in client.tokens
    await full_stack.until_idle()


async def test_without_a_tokenizer_only_constrained_requests_are_refused(stack):
    client = await stack.client()

    client.add(0, [10], sampling_params=constrained(regex="a"))
    client.add(1, [10])
    await client.until_finished(1)

    assert isinstance(client.rejected["r0"], Unsupported)
    assert "--tokenizer-targets" in client.rejected["r0"].message


async def test_a_constrained_request_survives_the_loss_of_its_worker(full_stack, vocabulary):
    client = await full_stack.client()
    client.add(0, [10], sampling_params=constrained(regex="[a-z]{9}"))
    await client.read()

    full_stack.worker.crashed.set()
    await client.until_finished(0)

    assert client.notices[:1] == ["WORKER_LOST"]
    assert re.fullmatch(b"[a-z]{9}", vocabulary.tokens.decode_bytes(client.tokens[0]))


async def test_a_constrained_request_goes_on_in_another_engine(full_stack, vocabulary):
    client = await full_stack.client()
    before = vocabulary.tokens.tokenize_str("xy-")

    client.add(0, [10], sampling_params=constrained(regex="[a-z]{2}-[0-9]"), resumed_output_token_ids=pack_u32(before))
    await client.until_finished(0)

    assert re.fullmatch(b"[0-9]", vocabulary.tokens.decode_bytes(client.tokens[0]))


async def test_a_constraint_may_begin_behind_a_sequence_of_ids(full_stack, vocabulary):
    client = await full_stack.client()
    constraint = {"choice": types_pb2.ChoiceList(choices=["ab"]), "start_after_token_ids": [20, 21]}

    client.add(0, [15], sampling_params=constrained(**constraint))
    await client.until_finished(0)

    assert client.tokens[0][:6] == [16, 17, 18, 19, 20, 21]
    assert vocabulary.tokens.decode_bytes(client.tokens[0][6:]) == b"ab"


async def test_stats_told_between_the_steps_of_a_constrained_request_do_not_bear_the_number_of_its_next_step(full_stack):
    client = await full_stack.client()
    client.add(0, [10], sampling_params=constrained(regex="[a-z]{30}"))
    await client.until_finished(0)
    client.messages.clear()
    full_stack.worker.go.clear()
    client.add(1, [10], max_tokens=200)
    await full_stack.until_load(lambda load: load.stats.num_running_reqs == 1)

    client.abort("r1")
    client.add(2, [10], sampling_params=constrained(regex="[a-z]{30}"))
    client.add(3, [10], sampling_params=constrained(regex="["))
    while "r3" not in client.rejected:  # by then the other one, whose grammar is known, can be planned
        await client.read()
    full_stack.worker.go.set()
    await client.until_finished(2)

    last = -1
    for message in client.messages:  # as frontends check it
        assert message.step_id > last or (message.step_id == last and not message.decode.handles)
        last = message.step_id
