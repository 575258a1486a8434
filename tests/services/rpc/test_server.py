"""Servers: health is correct, and a drain lets running work finish and refuses the rest with a status."""

import asyncio
import socket
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tetrad.services.errors import InvalidRequest, Unavailable
from tetrad.services.observability.metrics import serve_metrics
from tetrad.services.rpc.server import Server
from tetrad.services.settings import ServiceSettings

NAME = "test.Echo"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def echo(request: bytes) -> bytes:
    return request


async def health(client, service: str):
    stub = health_pb2_grpc.HealthStub(client.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_a_ready_server_is_alive_and_ready(serve):
    client, _ = await serve(echo)

    assert (await health(client, ""), await health(client, NAME)) == (SERVING, SERVING)


async def test_a_server_that_is_not_ready_is_alive_all_the_same(serve):
    client, server = await serve(echo)

    await server.health.set_ready(False)

    assert (await health(client, ""), await health(client, NAME)) == (SERVING, NOT_SERVING)


async def test_a_draining_server_never_becomes_ready_again(serve):
    client, server = await serve(echo)

    await server.health.drain()
    await server.health.set_ready(True)

    assert await health(client, NAME) == NOT_SERVING


async def test_a_watch_sees_readiness_change(serve):
    client, server = await serve(echo)
    call = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(service=NAME))

    first = (await call.read()).status
    await server.health.set_ready(False)
    second = (await call.read()).status
    call.cancel()

    assert (first, second) == (SERVING, NOT_SERVING)


async def test_a_burst_of_calls_waits_for_a_busy_event_loop(serve):
    """gRPC cancels some of them by default, from 1,000 that wait on."""
    _, server = await serve(echo)

    with grpc.insecure_channel(server.address) as channel:
        method = channel.unary_unary(f"/{NAME}/Unary")
        await asyncio.to_thread(method, b"connect")
        calls = [method.future(b"%d" % number) for number in range(2500)]  # blocks the event loop of the server, too
        time.sleep(1)  # noqa: ASYNC251 - until all have arrived
        answers = await asyncio.to_thread(lambda: [call.result() for call in calls])

    assert answers == [b"%d" % number for number in range(2500)]


async def test_drain_waits_for_running_work(serve):
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request):
        started.set()
        await go_on.wait()
        return b"done"

    client, server = await serve(slow)
    answer = asyncio.create_task(client.unary())
    await started.wait()

    draining = asyncio.create_task(server.drain(finish=go_on.wait))
    go_on.set()

    assert await answer == b"done"
    await draining


async def test_drain_gives_up_when_the_grace_is_over(serve):
    client, server = await serve(echo, drain_timeout_s=0.05)
    never = asyncio.Event()

    await asyncio.wait_for(server.drain(finish=never.wait), 5)

    with pytest.raises(Unavailable):
        await client.unary()


async def test_a_stale_socket_is_replaced(socket_directory, serve):
    _, server = await serve(echo)
    await server.stop()
    path = server.address.removeprefix("unix:")
    again = Server(ServiceSettings(listen=f"unix:{path}"), {})

    await again.start()
    await again.stop()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("here", "give host:port with a port of 0 to 65535, or unix:/path."),
        ("127.0.0.1:65536", "give host:port with a port of 0 to 65535, or unix:/path."),
        ("1.2.3.4:0", "Cannot assign requested address."),
        ("unix:/no/directory/x.sock", "No such file or directory."),
    ],
)
async def test_an_address_that_cannot_be_bound_is_refused_with_the_reason(address, reason):
    server = Server(ServiceSettings(listen=address), {})

    with pytest.raises((InvalidRequest, Unavailable)) as caught:
        await server.start()

    assert str(caught.value) == f"Cannot listen on {address}: {reason}"


async def test_a_port_that_is_taken_is_one_clear_error():
    first = Server(ServiceSettings(listen="127.0.0.1:0"), {})
    await first.start()

    second = Server(ServiceSettings(listen=first.address), {})
    with pytest.raises(Unavailable, match=f"{first.address}: Address already in use. Is another server running there"):
        await second.start()

    await first.stop()


async def test_reflection_lists_the_services(serve):
    client, _ = await serve(echo)
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    names = {service.name for service in (await call.read()).list_services_response.service}

    assert {NAME, "grpc.health.v1.Health"} <= names


async def test_a_message_over_the_limit_is_refused_and_the_next_is_served(serve):
    client, _ = await serve(echo, max_message_bytes=1 << 20)

    with pytest.raises(Exception, match="larger than max") as caught:
        await client.unary(b"x" * (1 << 21))
    assert not isinstance(caught.value, grpc.aio.AioRpcError)
    assert await client.unary(b"x") == b"x"


async def test_requests_may_be_limited_below_responses(serve):
    async def large(request):
        return bytes(2 << 20)

    client, _ = await serve(large, max_message_bytes=4 << 20, max_request_bytes=1 << 20)

    with pytest.raises(Exception, match="larger than max"):
        await client.unary(b"x" * (1 << 21))
    assert len(await client.unary(b"x")) == 2 << 20


async def test_metadata_over_the_limit_is_refused_and_the_next_call_is_served(serve):
    client, _ = await serve(echo, max_metadata_bytes=2048)

    with pytest.raises(Exception, match=r"metadata|header|RST_STREAM"):
        await client.unary(metadata=(("x-long", "x" * 4096),))
    assert await client.unary(b"x", metadata=(("x-short", "x" * 512),)) == b"x"


async def test_a_connection_has_no_more_calls_open_than_allowed(serve):
    running, most, go_on = 0, 0, asyncio.Event()

    async def count(request):
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await go_on.wait()
        running -= 1
        return request

    client, _ = await serve(count, max_concurrent_streams=2)
    calls = [asyncio.create_task(client.unary(b"x")) for _ in range(6)]
    async with asyncio.timeout(10):
        while running < 2:  # noqa: ASYNC110 - the server's side has no event to wait for
            await asyncio.sleep(0.01)
    go_on.set()

    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert most == 2
    # The others wait on the client's side; one that is sent in the moment in which another ends may be refused.
    assert answers.count(b"x") >= 2
    assert all(answer == b"x" or isinstance(answer, Unavailable) for answer in answers)


async def test_reflection_can_be_switched_off(serve):
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    client, _ = await serve(echo, reflection=False)

    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])).read()

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(("host", "reachable"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_metrics_are_served_where_they_are_told_to_be_and_nowhere_else(host, reachable):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    serve_metrics(host, port)

    assert can_connect("127.0.0.1", port)
    assert can_connect("127.0.0.2", port) == reachable


def can_connect(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True
