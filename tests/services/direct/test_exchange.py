"""A client over the direct carrier gets the answers that were sent before the server ended the call."""

import grpc
import pytest

from tetrad.services.direct.calls import StreamCall, UnaryCall
from tetrad.services.direct.exchange import Exchange, Status

OK, STOPPED = Status(grpc.StatusCode.OK, ""), Status(grpc.StatusCode.UNAVAILABLE, "The server was stopped.")


def new_exchange():
    return Exchange("/service/Method", (), None)


async def test_an_answer_can_be_read_after_its_server_has_stopped():
    exchange = new_exchange()
    await exchange.responses.put("answer")
    exchange.end(OK)

    exchange.cut(STOPPED)

    assert await UnaryCall(exchange) == "answer"


async def test_a_whole_stream_can_be_read_after_its_server_has_stopped():
    exchange = new_exchange()
    for message in ("one", "two"):
        await exchange.responses.put(message)
    exchange.end(OK)

    exchange.cut(STOPPED)

    assert [message async for message in StreamCall(exchange)] == ["one", "two"]


async def test_a_stream_without_its_end_fails_with_its_server():
    exchange = new_exchange()
    await exchange.responses.put("one")

    exchange.cut(STOPPED)

    with pytest.raises(grpc.aio.AioRpcError, match="The server was stopped"):
        await UnaryCall(exchange)


async def test_a_cancelled_call_has_no_answer():
    exchange = new_exchange()
    await exchange.responses.put("answer")
    exchange.end(OK)

    assert exchange.cancel()

    assert exchange.responses.is_drained
