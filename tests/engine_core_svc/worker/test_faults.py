"""Faulty workers: crashes over a request, malformed answers. Only the request concerned fails. Real gRPC."""

import pytest

from tests.engine_core_svc.fake_worker import VOCAB_SIZE, expected
from tests.engine_core_svc.service_fakes import Stack
from tetrad.engine_core_svc.worker.executor import Executor
from tetrad.services.errors import Code, InternalError, InvalidRequest
from tetrad.services.rpc.columns import pack_f32, pack_u32, unpack_u32
from tetrad.services.rpc.status import from_status, to_status
from tetrad.v1 import types_pb2, worker_pb2

POISON = 777


async def test_the_request_that_kills_workers_fails_alone(stack):
    stack.worker.poison = POISON
    client = await stack.client()
    for handle in range(1, 6):
        client.add(handle, [handle], max_tokens=30)
    client.add(6, [POISON, 6], max_tokens=30, request_id="poison")

    await client.until_finished(*range(1, 7))

    assert from_status(client.finished[6].status).reason == "POISONOUS_REQUEST"
    assert all(client.tokens[handle] == expected(handle, 30) for handle in range(1, 6))
    assert stack.worker.num_deaths == 3
    fatal = [batch for batch in stack.worker.batches if "poison" in batch]
    assert fatal[-1] == {"poison"}
    assert client.notices == ["WORKER_LOST", "RECOVERED"] * 3
    await stack.until_idle()


async def test_a_step_that_always_fails_is_poison_although_the_process_lives(stack):
    client = await stack.client()
    stack.worker.reply = lambda output: stack.worker.crashed.set() or output

    client.add(1, [1], max_tokens=30)
    await client.until_finished(1)

    assert from_status(client.finished[1].status).reason == "POISONOUS_REQUEST"


@pytest.mark.parametrize(("num_losses", "fails"), [(3, False), (4, True)])
async def test_a_request_fails_at_its_second_crash_of_another_engines_worker_while_it_runs_alone(directory, num_losses, fails):
    async with Stack(directory, pipeline_depth=1) as stack:
        lost = InternalError("A worker with other experts is lost.", reason="EXPERTS_LOST")
        stack.worker.step_errors = [lost] * num_losses
        client = await stack.client()

        client.add(1, [1], max_tokens=30)
        await client.until_finished(1)

        assert client.notices == ["WORKER_LOST", "RECOVERED"] * num_losses
        assert client.tokens[1] == ([] if fails else expected(1, 30))


async def test_cut_connections_make_no_suspects(stack):
    stack.worker.holds_after_cut = True
    client = await stack.client()
    client.add(1, [1], max_tokens=200)

    for number in range(1, 8):
        stack.worker.cut.set()
        stack.worker.go.set()
        while client.notices.count("RECOVERED") < number:
            await client.read()
    stack.worker.go.set()
    await client.until_finished(1)

    assert client.tokens[1] == expected(1, 200)


async def test_a_cut_whose_status_grpc_hides_makes_no_suspect(directory):
    """It has this text in place of the status of a call that ends while the engine core writes a plan."""
    async with Stack(directory, pipeline_depth=1) as stack:
        stack.worker.step_errors = [InternalError("Internal error from Core")] * 5
        client = await stack.client()

        client.add(1, [1], max_tokens=30)
        await client.until_finished(1)

        assert client.tokens[1] == expected(1, 30)


def unknown_step(output):
    output.step_id += 1000
    return output


def unknown_request(output):
    output.handles = pack_u32([99])
    return output


def ragged(output):
    output.token_ids += b"123"
    return output


def more_tokens_than_requests(output):
    output.token_ids += pack_u32([1, 2])
    return output


def more_numbers_than_requests(output):
    output.num_tokens += pack_u32([1])
    output.token_ids += pack_u32([1])
    return output


def ragged_logprobs(output):
    output.logprobs_by_width.add(handles=output.handles, columns=types_pb2.LogprobsColumns(width=2, num_positions=1))
    return output


def failing_a_stranger(output):
    output.failures.add(handle=99)
    return output


@pytest.mark.parametrize(
    "spoil",
    [
        unknown_step,
        unknown_request,
        ragged,
        more_tokens_than_requests,
        more_numbers_than_requests,
        ragged_logprobs,
        failing_a_stranger,
    ],
)
async def test_a_worker_that_answers_garbage_is_given_up_and_costs_no_token(stack, spoil):
    client = await stack.client()

    def spoil_once(output):
        stack.worker.reply = lambda output: output
        return spoil(output)

    client.add(1, [1], max_tokens=20)
    await client.read()
    stack.worker.reply = spoil_once
    await client.until_finished(1)

    assert client.tokens[1] == expected(1, 20)
    assert client.notices == ["WORKER_LOST", "RECOVERED"]
    await stack.until_idle()


def without_its_token(row):
    row["tokens"] = []


def token_beyond_the_vocabulary(row):
    row["tokens"] = [VOCAB_SIZE]


def more_tokens_than_planned(row):
    row["tokens"] *= 2


def logprobs_that_it_did_not_ask_for(row):
    row["logprobs"] = True


def prompt_logprobs_that_it_did_not_ask_for(row):
    row["prompt_logprobs"] = True


def failed_and_sampled(row):
    row["error"] = InternalError("It failed.")
    row["logprobs"] = True


@pytest.mark.parametrize(
    "spoil",
    [
        without_its_token,
        token_beyond_the_vocabulary,
        more_tokens_than_planned,
        logprobs_that_it_did_not_ask_for,
        prompt_logprobs_that_it_did_not_ask_for,
        failed_and_sampled,
    ],
)
async def test_a_result_that_is_wrong_for_one_request_fails_that_one_alone(stack, spoil):
    client = await stack.client()
    spoiled = []

    def reply(output):
        handles, tokens = unpack_u32(output.handles), unpack_u32(output.token_ids)
        names = [stack.worker.names[handle] for handle in handles]
        if spoiled or "bad" not in names or len(names) < 2:
            return output
        spoiled.append(output.step_id)
        return spoiled_output(output, handles[names.index("bad")], dict(zip(handles, tokens, strict=True)), spoil)

    stack.worker.reply = reply
    client.add(1, [1], max_tokens=30)
    client.add(2, [2], max_tokens=30, request_id="bad")
    await client.until_finished(1, 2)

    assert from_status(client.finished[2].status).code is Code.INTERNAL
    assert client.tokens[1] == expected(1, 30)
    assert client.notices == []
    await stack.until_idle()


def spoiled_output(output, bad, tokens, spoil):
    """Return a result with one request's part of it changed."""
    row = {"tokens": [tokens[bad]], "logprobs": False, "prompt_logprobs": False, "error": None}
    spoil(row)
    rows = {handle: row["tokens"] if handle == bad else [token] for handle, token in tokens.items()}
    rows = {handle: each for handle, each in rows.items() if each}
    output.handles, output.num_tokens = pack_u32(rows), pack_u32(map(len, rows.values()))
    output.token_ids = pack_u32(token for each in rows.values() for token in each)
    columns = types_pb2.LogprobsColumns(
        token_ids=pack_u32([5]), logprobs=pack_f32([-1.0]), ranks=pack_u32([1]), num_positions=1, width=1
    )
    if row["logprobs"]:
        output.logprobs_by_width.add(handles=pack_u32([bad]), columns=columns)
    if row["prompt_logprobs"]:
        output.prompt_logprobs.add(handle=bad, columns=columns)
    if row["error"]:
        output.failures.add(handle=bad, status=to_status(row["error"]))
    return output


async def test_logprobs_that_do_not_come_fail_their_request_alone(stack):
    """The fake worker never makes any."""
    client = await stack.client()
    client.add(1, [1], max_tokens=30)
    client.add(2, [2], sampling_params=types_pb2.SamplingParams(max_tokens=30, logprobs=1))

    await client.until_finished(1, 2)

    error = from_status(client.finished[2].status)
    assert (error.code, error.reason) == (Code.INTERNAL, "WORKER_FAULT")
    assert "it has no log-probabilities" in error.message
    assert client.tokens[1] == expected(1, 30)
    assert client.notices == []


@pytest.mark.parametrize(
    "message",
    [worker_pb2.ExecuteResponse(), worker_pb2.ExecuteResponse(ready=worker_pb2.ExecuteReady())],
    ids=["empty", "second ready"],
)
async def test_something_other_than_a_result_is_garbage_too(stack, message):
    client = await stack.client()
    stack.worker.raw = [message]

    client.add(1, [1], max_tokens=20)
    await client.until_finished(1)

    assert client.tokens[1] == expected(1, 20)
    assert client.notices == ["WORKER_LOST", "RECOVERED"]


async def test_bytes_that_are_no_message_are_garbage_too(stack, monkeypatch):
    """gRPC hands None to whoever reads them."""
    client = await stack.client()
    take = Executor._take
    undecodable = iter([True])
    monkeypatch.setattr(Executor, "_take", lambda self, response: take(self, None if next(undecodable, False) else response))

    client.add(1, [1], max_tokens=20)
    await client.until_finished(1)

    assert client.tokens[1] == expected(1, 20)
    assert "no ExecuteResponse" in client.notice_texts[0]


async def test_a_request_that_fails_alone_costs_nobody_the_worker(stack):
    """Although the next step is under way by then, and names it in vain."""
    failed = []

    def fail_once(output):
        handles, tokens = unpack_u32(output.handles), unpack_u32(output.token_ids)
        rows = [(handle, token) for handle, token in zip(handles, tokens, strict=True) if names.get(handle) != "bad"]
        if len(rows) < len(handles):
            if not failed:
                [handle] = set(handles) - {handle for handle, _ in rows}
                output.failures.add(handle=handle, status=to_status(InvalidRequest("Nothing is left to sample.")))
                failed.append(output.step_id)
            output.handles = pack_u32([handle for handle, _ in rows])
            output.token_ids = pack_u32([token for _, token in rows])
            output.num_tokens = pack_u32([1] * len(rows))
        return output

    names = stack.worker.names
    stack.worker.reply = fail_once
    client = await stack.client()
    client.add(1, [1], max_tokens=30)
    client.add(2, [2], max_tokens=30, request_id="bad")

    await client.until_finished(1, 2)

    assert from_status(client.finished[2].status).message == "Nothing is left to sample."
    assert client.tokens[1] == expected(1, 30)
    assert client.notices == []
    await stack.until_idle()
