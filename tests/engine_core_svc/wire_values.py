"""Values that tests of several messages of the engine core share."""

from tetrad.engine_core_svc.core.plan import (
    Logprobs,
)
from tetrad.services.rpc.columns import pack_f32, pack_u32
from tetrad.v1 import types_pb2

HEADERS = {"x-request-id": "r", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}


def columns(token_ids, width=1):
    """Return the same log-probabilities as a message and as a value."""
    ids, values, ranks = pack_u32(token_ids), pack_f32([-float(i) for i in token_ids]), pack_u32(token_ids[::width])
    fields = {"token_ids": ids, "logprobs": values, "ranks": ranks, "num_positions": len(token_ids) // width, "width": width}
    return types_pb2.LogprobsColumns(**fields), Logprobs(**fields)
