"""The admin port serves channelz and reflection; the port for frontends serves no channelz."""

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tetrad.services.rpc.channel import open_channel

CHANNELZ = "grpc.channelz.v1.Channelz"


@pytest.fixture
async def ports(stack):
    """Return channels to (the operators' port, that of the sessions) of an engine core that serves a client."""
    await stack.client()
    async with open_channel(stack.settings.admin_listen) as admin, open_channel(stack.settings.listen) as sessions:
        yield admin, sessions


async def services_at(channel) -> set[str]:
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    await call.done_writing()
    return {service.name for service in answer.list_services_response.service}


async def test_channelz_shows_servers_and_what_this_process_is_connected_to(ports, stack):
    channelz = channelz_pb2_grpc.ChannelzStub(ports[0])

    servers = (await channelz.GetServers(channelz_pb2.GetServersRequest())).server
    channels = (await channelz.GetTopChannels(channelz_pb2.GetTopChannelsRequest())).channel

    assert sum(server.data.calls_started for server in servers) > 0
    found = [await channelz.GetServer(channelz_pb2.GetServerRequest(server_id=each.ref.server_id)) for each in servers]
    assert [each.server.ref.server_id for each in found] == [each.ref.server_id for each in servers]
    # Servers of earlier tests may be there still, without anybody.
    asked = [channelz_pb2.GetServerSocketsRequest(server_id=each.ref.server_id) for each in servers]
    assert any([(await channelz.GetServerSockets(each)).socket_ref for each in asked])
    assert any(channel.data.target.endswith(stack.settings.worker_target.removeprefix("unix:")) for channel in channels)


async def test_channelz_says_what_it_does_not_know(ports):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channelz_pb2_grpc.ChannelzStub(ports[0]).GetSocket(channelz_pb2.GetSocketRequest(socket_id=10**9))

    assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_frontends_see_no_channelz(ports):
    channelz = channelz_pb2_grpc.ChannelzStub(ports[1])

    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channelz.GetServers(channelz_pb2.GetServersRequest())

    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_tells_what_each_port_serves(ports):
    admin, sessions = [await services_at(channel) for channel in ports]

    assert {"tetrad.v1.EngineCoreAdminService", CHANNELZ} <= admin
    assert "tetrad.v1.EngineCoreService" in sessions
    assert CHANNELZ not in sessions
