"""Call limits: admits gRPC calls and sets their deadlines, for all APIs of the public port. Knows no messages."""

from dataclasses import dataclass

import grpc

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.request.deadlines import tighten_deadline


@dataclass(frozen=True)
class CallLimits:
    """Time limits of calls.

    Attributes:
        request_timeout_s: from their arrival to their end; None: any time.
    """

    request_timeout_s: float | None


def admit(models: AsyncLLM | ModelDirectory, limits: CallLimits, context: grpc.aio.ServicerContext) -> None:
    """Refuse a call, before anything of it is looked at, if none can be taken; give others their deadline."""
    tighten_deadline(limits.request_timeout_s)
    tighten_deadline(context.time_remaining())
    models.admission.check()
