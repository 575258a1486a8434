"""Parameters of requests, as messages that the engine core passes on to the worker."""

from dataclasses import dataclass

from tetrad.engine_core_svc.core.payload import EncodedParams
from tetrad.v1 import types_pb2


@dataclass(frozen=True, slots=True, eq=False)
class SamplingMessage(EncodedParams):
    """Sampling parameters of a generating request. The message must not change: several plans and requests hold it."""

    message: types_pb2.SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class PoolingMessage(EncodedParams):
    """Parameters of a pooling request."""

    message: types_pb2.PoolingParams


def sampling_of(params: EncodedParams) -> types_pb2.SamplingParams:
    """Return the message of sampling parameters. Raises TypeError for other parameters, which is a bug of the caller."""
    if not isinstance(params, SamplingMessage):
        raise TypeError(f"{type(params).__name__} holds no sampling parameters")
    return params.message
