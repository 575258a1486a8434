"""The operators' port: sessions' callers cannot operate, and the port can be turned off."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.engine_core_svc.service_fakes import Stack
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc


async def load_at(address: str) -> engine_core_pb2.GetLoadResponse:
    async with open_channel(address) as channel:
        stub = engine_core_pb2_grpc.EngineCoreAdminServiceStub(channel)
        return await stub.GetLoad(engine_core_pb2.GetLoadRequest(), timeout=10)


async def test_the_port_of_sessions_takes_no_orders_and_the_admin_port_does(socket_directory):
    async with Stack(socket_directory) as stack:
        await stack.client()

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await load_at(stack.settings.listen)

        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert (await load_at(stack.settings.admin_listen)).load.num_sessions == 1


async def test_both_ports_say_whether_the_engine_takes_work(socket_directory):
    async with Stack(socket_directory) as stack:
        await stack.client()

        for address, service in (
            (stack.settings.listen, "tetrad.v1.EngineCoreService"),
            (stack.settings.admin_listen, "tetrad.v1.EngineCoreAdminService"),
        ):
            async with open_channel(address) as channel:
                answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
