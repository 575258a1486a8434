"""A frontend with an adapter, for the tests of adapters over every API."""

import pytest

from tetrad.services.rpc.channel import open_channel


@pytest.fixture
async def adapted(serve_frontend, engine):
    """A frontend that leaves it to the first request to load the adapter."""
    engine.supports_lora = True
    fields = {"lora_modules": ("sql=/adapters/sql",), "engine_admin_targets": ()}
    async with serve_frontend(listen="127.0.0.1:0", **fields) as running:
        yield running


@pytest.fixture
async def channel(adapted):
    async with open_channel(adapted.grpc_address) as opened:
        yield opened
