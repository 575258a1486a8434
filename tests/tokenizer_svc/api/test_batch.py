"""Batch: many calls on one stream and in one message, each with the answer of a separate call."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.tokenizer_svc.conftest import HeldTokenizer, Serve
from tests.tokenizer_svc.errors import error_of
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.status import from_status
from tetrad.tokenizer_svc.api import servicer
from tetrad.tokenizer_svc.chat.renderer import ChatLimits, ChatRenderer
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc

USER = [{"role": "user", "content": "Hi"}]

Stub = tokenizer_pb2_grpc.TokenizerServiceStub


async def answers_to(stub: Stub, calls: Iterable[tokenizer_pb2.BatchedCall]) -> list[tokenizer_pb2.BatchedAnswer]:
    """Return the answers to one message."""
    [response] = [each async for each in stub.Batch(iter([tokenizer_pb2.BatchRequest(calls=calls, id=7)]))]
    assert response.id == 7
    return list(response.answers)


async def test_each_call_is_answered_as_if_it_had_come_alone(serve: Serve) -> None:
    encode = tokenizer_pb2.EncodeRequest(texts=["The capital", "of"])
    chat = tokenizer_pb2.RenderChatRequest(messages_json=json.dumps(USER).encode())
    calls = [tokenizer_pb2.BatchedCall(encode=encode), tokenizer_pb2.BatchedCall(render_chat=chat)]
    async with serve() as stub:
        answers = await answers_to(stub, calls)
        alone = await stub.Encode(encode), await stub.RenderChat(chat)

    assert (answers[0].encode, answers[1].render_chat) == alone


async def test_an_error_is_that_of_its_call_alone(serve: Serve) -> None:
    texts = ["0123456789", "你好你好", "fine"]
    calls = [tokenizer_pb2.BatchedCall(encode=tokenizer_pb2.EncodeRequest(texts=[text])) for text in texts]
    broken = tokenizer_pb2.RenderChatRequest(messages_json=b"{")
    calls += [tokenizer_pb2.BatchedCall(render_chat=broken), tokenizer_pb2.BatchedCall()]
    async with serve(max_text_bytes=10) as stub:
        answers = await answers_to(stub, calls)
        alone = await error_of(stub.RenderChat(broken))

    errors = {place: from_status(answer.error) for place, answer in enumerate(answers) if answer.HasField("error")}
    assert errors.keys() == {1, 3, 4}
    assert "limit is 10" in errors[1].message
    assert errors[1].field == "texts"
    assert errors[3].message == alone.message
    assert "Encode or RenderChat" in errors[4].message


async def test_half_a_surrogate_pair_in_an_error_does_not_end_the_other_calls(serve: Serve) -> None:
    template = r"{{ raise_exception('no \ud83d') }}"
    refused = tokenizer_pb2.RenderChatRequest(messages_json=json.dumps(USER).encode(), chat_template=template)
    encode = tokenizer_pb2.EncodeRequest(texts=["The capital"])
    async with serve() as stub:
        calls = [tokenizer_pb2.BatchedCall(render_chat=refused), tokenizer_pb2.BatchedCall(encode=encode)]
        answers = await answers_to(stub, calls)

    assert from_status(answers[0].error).message == "no ?"
    assert answers[1].HasField("encode")


async def test_a_bug_is_answered_without_its_text(serve: Serve, held: HeldTokenizer) -> None:
    held.encode = None  # type: ignore[assignment,method-assign] # whatever fails unforeseen
    calls = [tokenizer_pb2.BatchedCall(encode=tokenizer_pb2.EncodeRequest(texts=["a"]))]
    async with serve(held) as stub:
        [answer] = await answers_to(stub, calls)

    assert from_status(answer.error).message == "Batch failed; the server's log has the details."


async def test_each_call_works_for_its_own_request(serve: Serve, held: HeldTokenizer) -> None:
    held.go_on.set()
    calls = [
        tokenizer_pb2.BatchedCall(
            encode=tokenizer_pb2.EncodeRequest(texts=["a"]), trace_headers={"x-request-id": f"request-{number}"}
        )
        for number in range(2)
    ]
    async with serve(held) as stub:
        await answers_to(stub, calls)

    assert held.request_ids == ["request-0", "request-1"]


def encode(text: str, message_id: int) -> tokenizer_pb2.BatchRequest:
    """Return a message with one text; one of more than 500 characters has a thread of its own."""
    call = tokenizer_pb2.BatchedCall(encode=tokenizer_pb2.EncodeRequest(texts=[text]))
    return tokenizer_pb2.BatchRequest(calls=[call], id=message_id)


async def test_a_message_does_not_wait_for_the_one_before(serve: Serve, held: HeldTokenizer) -> None:
    async with serve(held) as stub:
        stream = stub.Batch()
        await stream.write(encode("long " * 200, 1))
        await stream.write(tokenizer_pb2.BatchRequest(id=2))
        first = await stream.read()
        held.go_on.set()
        second = await stream.read()
        await stream.done_writing()

        assert (first.id, len(first.answers)) == (2, 0)
        assert (second.id, len(second.answers)) == (1, 1)
        assert await stream.read() is grpc.aio.EOF


async def test_who_leaves_while_calls_are_made_disturbs_nobody(serve: Serve, held: HeldTokenizer) -> None:
    async with serve(held) as stub:
        leaving = stub.Batch()
        await leaving.write(encode("long " * 200, 1))
        assert await asyncio.to_thread(held.began.wait, 10)
        leaving.cancel()
        held.go_on.set()

        [answer] = await answers_to(stub, encode("a", 1).calls)
        assert len(answer.encode.encodings) == 1


async def test_a_message_too_many_is_not_read_until_one_is_answered(
    serve: Serve, held: HeldTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "_MESSAGES_AT_ONCE", 1)
    async with serve(held) as stub:
        stream = stub.Batch()
        await stream.write(encode("long " * 200, 1))
        await stream.write(tokenizer_pb2.BatchRequest(id=2))
        assert await asyncio.to_thread(held.began.wait, 10)
        held.go_on.set()

        assert [(await stream.read()).id, (await stream.read()).id] == [1, 2]
        stream.cancel()


async def test_an_answer_that_nobody_is_there_for_is_no_bug(tokenizer: Tokenizer) -> None:
    class Left:
        async def write(self, _: object) -> None:
            raise grpc.aio.InternalError("the call is over")

    async def messages() -> AsyncIterator[tokenizer_pb2.BatchRequest]:
        yield tokenizer_pb2.BatchRequest(id=1)

    chat = ChatRenderer(tokenizer.facts, ChatLimits(1.0, 1 << 30, 1_000))
    with ThreadPoolExecutor(1) as pool, pytest.raises(asyncio.CancelledError):
        service = servicer.TokenizerServicer(tokenizer, chat, pool, model="smollm2", max_text_bytes=1_000)
        await service.Batch(messages(), Left())
    await chat.close()


async def test_a_message_that_cannot_be_read_ends_the_call_behind_the_answers_to_those_before(tokenizer: Tokenizer) -> None:
    """A write that is cancelled would leave the call without an end."""
    written: list[int] = []

    class Caller:
        async def write(self, response: tokenizer_pb2.BatchResponse) -> None:
            await asyncio.sleep(0.01)
            written.append(response.id)

    async def messages() -> AsyncIterator[tokenizer_pb2.BatchRequest]:
        yield tokenizer_pb2.BatchRequest(id=1)
        yield tokenizer_pb2.BatchRequest(id=2)
        raise InvalidRequest("cannot be parsed")

    chat = ChatRenderer(tokenizer.facts, ChatLimits(1.0, 1 << 30, 1_000))
    with ThreadPoolExecutor(1) as pool, pytest.raises(InvalidRequest, match="cannot be parsed"):
        service = servicer.TokenizerServicer(tokenizer, chat, pool, model="smollm2", max_text_bytes=1_000)
        await service.Batch(messages(), Caller())
    await chat.close()

    assert written == [1, 2]


async def test_every_message_of_a_long_stream_is_answered(serve: Serve) -> None:
    async with serve() as stub:
        responses = [each async for each in stub.Batch(iter([encode("long " * 200, number) for number in range(200)]))]

    assert sorted(each.id for each in responses) == list(range(200))


def test_answers_that_would_not_fit_one_message_are_left_out_for_their_calls_to_be_made_alone() -> None:
    sizes = (400_000, 1_200_000, 400_000, 30)
    answers = [
        tokenizer_pb2.BatchedAnswer(
            encode=tokenizer_pb2.EncodeResponse(encodings=[tokenizer_pb2.Encoding(token_ids=bytes(size))])
        )
        for size in sizes
    ]

    fitting = servicer._within_a_message(answers)

    assert [each.HasField("encode") for each in fitting] == [True, False, False, False]
    assert tokenizer_pb2.BatchResponse(answers=fitting, id=2**64 - 1).ByteSize() < 1 << 20
