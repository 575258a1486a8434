"""The error of a refused gRPC call."""

from typing import Any

import grpc
import pytest

from tetrad.services.errors import TetradError
from tetrad.services.rpc.status import from_rpc_error


async def error_of(call: Any) -> TetradError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)
