"""The guarantees of every carrier: messages, ends, errors, deadlines, cancellation, flow control."""

import asyncio
import contextlib

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from tests.carriers import OVER_EACH_CARRIER, make_carrier
from tetrad.services.errors import InvalidRequest, Overloaded
from tetrad.services.request_context import RequestContext, bind_context, current_context
from tetrad.services.rpc.channel import is_call_closed
from tetrad.services.rpc.interceptors import ErrorsAndContexts
from tetrad.services.rpc.status import from_rpc_error

pytestmark = OVER_EACH_CARRIER

WAIT_S = 10
SERVICE = "test.Echo"
ENDED_FROM_OUTSIDE = ("cancelled", "returned", "closed")
"""How handlers of streams end that are cut: gRPC may show them the end of their messages first, or close them in a yield."""


def text(value):
    return StringValue(value=value)


class Echo:
    """Answers with what it gets. `ended`: how each handler ended."""

    def __init__(self):
        self.num_sent = 0
        self.began = asyncio.Event()
        self.ended = asyncio.Queue()

    def handlers(self):
        codec = {"request_deserializer": StringValue.FromString, "response_serializer": StringValue.SerializeToString}
        return {
            "Say": grpc.unary_unary_rpc_method_handler(self.say, **codec),
            "Count": grpc.unary_stream_rpc_method_handler(self.count, **codec),
            "Repeat": grpc.stream_stream_rpc_method_handler(self.repeat, **codec),
            "Write": grpc.stream_stream_rpc_method_handler(self.write, **codec),
        }

    async def say(self, request, context):
        with self.noting_end():
            if request.value == "fail":
                raise Overloaded("Too many echoes.", retry_after_s=2.5, metadata={"echoes": "7"})
            if request.value == "break":
                raise ValueError("a bug")
            if request.value == "hang":
                await asyncio.Event().wait()
            if request.value == "who":
                return text(current_context().request_id)
            return request

    async def count(self, request, context):
        with self.noting_end():
            for number in range(int(request.value)):
                yield text(str(number) + "." * 100_000)
                self.num_sent += 1
            if request.value == "3":
                raise InvalidRequest("Three is too many.", field="number")

    async def repeat(self, requests, context):
        with self.noting_end():
            async for request in requests:
                yield request

    async def write(self, requests, context):
        with self.noting_end():
            async for request in requests:
                await context.write(request)

    @contextlib.contextmanager
    def noting_end(self):
        self.began.set()
        try:
            yield
        except asyncio.CancelledError:
            self.ended.put_nowait("cancelled")
            raise
        except GeneratorExit:
            self.ended.put_nowait("closed")
            raise
        except Exception as error:
            self.ended.put_nowait(type(error).__name__)
            raise
        self.ended.put_nowait("returned")

    async def end(self):
        return await asyncio.wait_for(self.ended.get(), WAIT_S)


@pytest.fixture
def carrier(request):
    return make_carrier(request)


@pytest.fixture
async def start_server(carrier, make_socket):
    """`await start_server()` serves an Echo at the one address there is; returns it and its server."""
    servers = []

    async def start():
        echo, server = Echo(), carrier.server([ErrorsAndContexts()], [])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, echo.handlers()),))
        server.add_registered_method_handlers(SERVICE, echo.handlers())
        await carrier.bind(server, make_socket("echo"), None, callers_are_known=False)
        await server.start()
        servers.append(server)
        return echo, server

    yield start
    for server in servers:
        await server.stop(None)


@pytest.fixture
async def echo(start_server):
    echo, _ = await start_server()
    return echo


@pytest.fixture
async def channel(carrier, make_socket):
    channel = carrier.connect(make_socket("echo"))
    yield channel
    await channel.close()


def method(channel, name):
    shape = {"Count": "unary_stream", "Repeat": "stream_stream", "Write": "stream_stream"}.get(name, "unary_unary")
    make = getattr(channel, shape)
    return make(
        f"/{SERVICE}/{name}", request_serializer=StringValue.SerializeToString, response_deserializer=StringValue.FromString
    )


async def test_a_call_brings_its_response(echo, channel):
    assert await method(channel, "Say")(text("hello")) == text("hello")


async def test_an_error_keeps_its_type_reason_and_details(echo, channel):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(channel, "Say")(text("fail"))

    error = from_rpc_error(caught.value)
    assert isinstance(error, Overloaded)
    assert (error.message, error.retry_after_s, error.metadata) == ("Too many echoes.", 2.5, {"echoes": "7"})


async def test_a_bug_of_a_handler_is_internal_and_tells_nothing(echo, channel):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(channel, "Say")(text("break"))

    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "a bug" not in caught.value.details()


async def test_a_method_that_is_not_served_is_unimplemented(echo, channel):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(channel, "Sing")(text("la"))

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_handler_works_for_the_request_that_the_metadata_name(echo, channel):
    with bind_context(RequestContext("of the client")):
        named = await method(channel, "Say")(text("who"), metadata=(("x-request-id", "r-1"),))
        unnamed = await method(channel, "Say")(text("who"))

    assert (named.value, unnamed.value) == ("r-1", "")


async def test_a_deadline_ends_the_call_and_its_handler(echo, channel):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(channel, "Say")(text("hang"), timeout=0.05)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await echo.end() == "cancelled"


async def test_a_task_that_is_cancelled_cancels_its_call(echo, channel):
    async def say():
        await method(channel, "Say")(text("hang"))

    saying = asyncio.create_task(say())
    await echo.began.wait()
    saying.cancel()

    with pytest.raises(asyncio.CancelledError):
        await saying
    assert await echo.end() == "cancelled"


async def test_a_stream_brings_all_messages_and_then_its_end(echo, channel):
    numbers = [message.value.rstrip(".") async for message in method(channel, "Count")(text("5"))]

    assert numbers == ["0", "1", "2", "3", "4"]


async def test_a_stream_that_fails_brings_what_was_before(echo, channel):
    call = method(channel, "Count")(text("3"))

    assert [(await call.read()).value.rstrip(".") for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = from_rpc_error(caught.value)
    assert (type(error), error.field) == (InvalidRequest, "number")


@pytest.mark.parametrize("name", ["Repeat", "Write"])
async def test_both_sides_stream_until_the_client_is_done(echo, channel, name):
    call = method(channel, name)()

    for word in ("one", "two"):
        await call.write(text(word))
        assert await call.read() == text(word)
    await call.done_writing()

    assert await call.read() is grpc.aio.EOF
    assert await echo.end() == "returned"


async def test_a_slow_reader_holds_its_server_up(echo, channel):
    call = method(channel, "Count")(text("1000"))

    await call.read()
    async with asyncio.timeout(WAIT_S):
        before = -1
        while echo.num_sent != before:
            before = echo.num_sent
            await asyncio.sleep(0.05)

    assert echo.num_sent < 200


async def test_reads_of_a_call_that_its_client_ends_are_cancelled(echo, channel):
    call = method(channel, "Repeat")()
    await call.write(text("one"))
    await call.read()

    reading = asyncio.create_task(_read_until_closed(call))
    await asyncio.sleep(0)
    call.cancel()

    assert await asyncio.wait_for(reading, WAIT_S)
    assert await echo.end() in ENDED_FROM_OUTSIDE
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(text("two"))


async def _read_until_closed(call):
    try:
        await call.read()
    except asyncio.CancelledError as error:
        return is_call_closed(error)
    return False


async def test_a_closed_channel_ends_its_calls(echo, channel):
    call = method(channel, "Repeat")()
    await call.write(text("one"))
    await call.read()

    reading = asyncio.create_task(_read_until_closed(call))
    await asyncio.sleep(0)
    await channel.close()

    assert await asyncio.wait_for(reading, WAIT_S)


async def test_without_a_server_a_call_is_unavailable(channel):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(channel, "Say")(text("hello"))

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_call_may_wait_for_its_server(channel, start_server):
    waiting = asyncio.ensure_future(method(channel, "Say")(text("hello"), wait_for_ready=True, timeout=WAIT_S))
    await asyncio.sleep(0.05)

    await start_server()

    assert await waiting == text("hello")


async def test_a_wait_for_a_server_ends_with_the_deadline(channel):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(channel, "Say")(text("hello"), wait_for_ready=True, timeout=0.05)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_stopped_server_ends_its_calls_and_its_successor_gets_the_next(channel, start_server):
    first, server = await start_server()
    call = method(channel, "Repeat")()
    await call.write(text("one"))
    await call.read()
    assert channel.get_state() is grpc.ChannelConnectivity.READY

    await server.stop(None)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert await first.end() in ENDED_FROM_OUTSIDE
    async with asyncio.timeout(WAIT_S):
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
    await start_server()
    assert await method(channel, "Say")(text("hello"), wait_for_ready=True, timeout=WAIT_S) == text("hello")


async def test_a_server_that_stops_lets_calls_end_within_the_grace(channel, start_server):
    _, server = await start_server()
    call = method(channel, "Repeat")()
    await call.write(text("one"))
    await call.read()

    stopping = asyncio.create_task(server.stop(WAIT_S))
    await asyncio.sleep(0)
    await call.done_writing()

    assert await call.read() is grpc.aio.EOF
    await stopping
