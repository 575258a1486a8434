"""Servers: health tells the truth, drain lets running work finish and refuses nothing silently."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tetrad.services.errors import Unavailable
from tetrad.services.server import Server
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


async def test_a_port_that_is_taken_is_one_clear_error():
    first = Server(ServiceSettings(listen="127.0.0.1:0"), {})
    await first.start()

    second = Server(ServiceSettings(listen=first.address), {})
    with pytest.raises(Unavailable, match=first.address):
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
