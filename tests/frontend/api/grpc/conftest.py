"""A client of a frontend whose formats of calls and reasoning are known."""

import pytest

from tests.frontend.api.grpc.chat_client import Client
from tests.frontend.turns import FORMATS
from tetrad.services.rpc.channel import open_channel


@pytest.fixture
async def client(serve_frontend):
    async with (
        serve_frontend(listen="127.0.0.1:0", **FORMATS) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        yield Client(frontend, channel)
