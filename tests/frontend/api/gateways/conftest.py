"""Fixtures: a channel to a frontend on fakes, as a gateway has one."""

import pytest

from tetrad.services.rpc.channel import open_channel


@pytest.fixture
async def channel(frontend):
    async with open_channel(frontend.grpc_address) as opened:
        yield opened
