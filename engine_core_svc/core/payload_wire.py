"""WorkerPayload: the part of a request that the worker needs and the engine core only passes on."""

from dataclasses import dataclass

from tetrad.services.request_context import NO_CONTEXT, RequestContext
from tetrad.v1 import types_pb2


@dataclass(frozen=True, slots=True)
class WorkerPayload:
    """What the worker needs of a request and the engine core only passes on.

    Attributes:
        sampling_params: may be one object with that of other requests; never changed.
        eos_token_id: of the model.
        context: of the client's request.
        seed: replaces that of the parameters; None: theirs.
    """

    sampling_params: types_pb2.SamplingParams
    eos_token_id: int | None
    context: RequestContext = NO_CONTEXT
    seed: int | None = None
