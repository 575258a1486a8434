"""ChannelzServicer: serves grpc.channelz from gRPC core's data: servers, channels, sockets, and their calls.

The package's own servicer fails on an unknown field, and the core may be a newer release than the package, which depends on one
major version of protobuf; this one drops such fields.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from grpc._cython import cygrpc
from grpc_channelz.v1 import channelz_pb2 as pb
from grpc_channelz.v1 import channelz_pb2_grpc

from tetrad.services.errors import NotFound

Answer = TypeVar("Answer", bound=Message)

SERVICE_NAME = str(pb.DESCRIPTOR.services_by_name["Channelz"].full_name)


class ChannelzServicer(channelz_pb2_grpc.ChannelzServicer):  # type: ignore[misc] # the package ships no types
    """Reports every connection of this process; the server's port decides who may call it."""

    async def GetTopChannels(self, request: Any, context: Any) -> Any:
        """List the channels that this process has opened."""
        return _told(pb.GetTopChannelsResponse(), cygrpc.channelz_get_top_channels, request.start_channel_id)

    async def GetServers(self, request: Any, context: Any) -> Any:
        """List the servers of this process."""
        return _told(pb.GetServersResponse(), cygrpc.channelz_get_servers, request.start_server_id)

    async def GetServer(self, request: Any, context: Any) -> Any:
        """Return a server. Raises NotFound for an unknown id, as all methods below."""
        return _told(pb.GetServerResponse(), cygrpc.channelz_get_server, request.server_id)

    async def GetServerSockets(self, request: Any, context: Any) -> Any:
        """List the connections to a server."""
        ids = (request.server_id, request.start_socket_id, request.max_results)
        return _told(pb.GetServerSocketsResponse(), cygrpc.channelz_get_server_sockets, *ids)

    async def GetChannel(self, request: Any, context: Any) -> Any:
        """Return a channel."""
        return _told(pb.GetChannelResponse(), cygrpc.channelz_get_channel, request.channel_id)

    async def GetSubchannel(self, request: Any, context: Any) -> Any:
        """Return a channel's connection to one address."""
        return _told(pb.GetSubchannelResponse(), cygrpc.channelz_get_subchannel, request.subchannel_id)

    async def GetSocket(self, request: Any, context: Any) -> Any:
        """Return a connection."""
        return _told(pb.GetSocketResponse(), cygrpc.channelz_get_socket, request.socket_id)


def _told(answer: Answer, ask: Callable[..., bytes], *ids: int) -> Answer:
    try:
        text = ask(*ids)
    except ValueError as error:
        raise NotFound(f"{error}.") from error
    return json_format.Parse(text, answer, ignore_unknown_fields=True)
