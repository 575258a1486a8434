"""Batch: many calls in one message, each answered as if it had come alone."""

import json

from tests.tokenizer_svc.conftest import HeldTokenizer, Serve
from tests.tokenizer_svc.errors import error_of
from tetrad.services.status import from_status
from tetrad.v1 import tokenizer_pb2

USER = [{"role": "user", "content": "Hi"}]


async def test_each_call_is_answered_as_if_it_had_come_alone(serve: Serve) -> None:
    encode = tokenizer_pb2.EncodeRequest(texts=["The capital", "of"])
    chat = tokenizer_pb2.RenderChatRequest(messages_json=json.dumps(USER).encode())
    calls = [tokenizer_pb2.BatchedCall(encode=encode), tokenizer_pb2.BatchedCall(render_chat=chat)]
    async with serve() as stub:
        answers = (await stub.Batch(tokenizer_pb2.BatchRequest(calls=calls))).answers
        alone = await stub.Encode(encode), await stub.RenderChat(chat)

    assert (answers[0].encode, answers[1].render_chat) == alone


async def test_an_error_is_that_of_its_call_alone(serve: Serve) -> None:
    texts = ["0123456789", "你好你好", "fine"]
    calls = [tokenizer_pb2.BatchedCall(encode=tokenizer_pb2.EncodeRequest(texts=[text])) for text in texts]
    broken = tokenizer_pb2.RenderChatRequest(messages_json=b"{")
    calls += [tokenizer_pb2.BatchedCall(render_chat=broken), tokenizer_pb2.BatchedCall()]
    async with serve(max_text_bytes=10) as stub:
        answers = (await stub.Batch(tokenizer_pb2.BatchRequest(calls=calls))).answers
        alone = await error_of(stub.RenderChat(broken))

    errors = {place: from_status(answer.error) for place, answer in enumerate(answers) if answer.HasField("error")}
    assert errors.keys() == {1, 3, 4}
    assert "limit is 10" in errors[1].message
    assert errors[1].field == "texts"
    assert errors[3].message == alone.message
    assert "Encode or RenderChat" in errors[4].message


async def test_a_bug_is_answered_without_its_text(serve: Serve, held: HeldTokenizer) -> None:
    held.encode = None  # type: ignore[assignment,method-assign] # whatever fails unforeseen
    calls = [tokenizer_pb2.BatchedCall(encode=tokenizer_pb2.EncodeRequest(texts=["a"]))]
    async with serve(held) as stub:
        [answer] = (await stub.Batch(tokenizer_pb2.BatchRequest(calls=calls))).answers

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
        await stub.Batch(tokenizer_pb2.BatchRequest(calls=calls))

    assert held.request_ids == ["request-0", "request-1"]
