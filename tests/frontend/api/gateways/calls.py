"""Answers and refusals of gRPC calls."""

import grpc
import pytest

from tetrad.services.rpc.status import from_rpc_error


async def answers_of(call):
    """Return all messages of a stream."""
    return [message async for message in call]


async def refusal_of(call):
    """Return the status code of a refused call, and the field that it names."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), from_rpc_error(caught.value).field
