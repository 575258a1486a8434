"""Parameters of requests, as the messages that stand for them on the way to the worker."""

from dataclasses import dataclass

from tetrad.engine_core_svc.core.payload import EncodedParams
from tetrad.v1 import types_pb2


@dataclass(frozen=True, slots=True, eq=False)
class SamplingMessage(EncodedParams):
    """Sampling parameters of a request that generates. The message is never changed: several plans and requests hold it."""

    message: types_pb2.SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class PoolingMessage(EncodedParams):
    """Parameters of a pooling request."""

    message: types_pb2.PoolingParams


def sampling_of(params: EncodedParams) -> types_pb2.SamplingParams:
    """Return the message of sampling parameters; TypeError for other parameters: a bug of ours."""
    if not isinstance(params, SamplingMessage):
        raise TypeError(f"{type(params).__name__} holds no sampling parameters")
    return params.message
