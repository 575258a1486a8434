"""Call limits: admits gRPC calls and sets their deadlines, for all APIs of the public port. Knows no messages."""

from dataclasses import dataclass

import grpc

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.request.deadlines import tighten_deadline


@dataclass(frozen=True)
class CallLimits:
    """The time limits of calls.

    Attributes:
        request_timeout_s: maximum seconds from a call's arrival to its end; None: no limit.
    """

    request_timeout_s: float | None


def admit(models: AsyncLLM | ModelDirectory, limits: CallLimits, context: grpc.aio.ServicerContext) -> None:
    """Set the deadline of a call; raise Overloaded if the server cannot accept a call now. Call it before all other checks."""
    tighten_deadline(limits.request_timeout_s)
    tighten_deadline(context.time_remaining())
    models.admission.check()
