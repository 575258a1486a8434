"""Traced calls: assigns a request id and a trace to each call of the public gRPC port. Knows no messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.request.call_trace import CallTrace
from tetrad.services.request_context import checked_request_id, current_context, new_request_id


@contextmanager
def traced_call(models: AsyncLLM | ModelDirectory, given_id: str) -> Iterator[str]:
    """Trace a call inside the context, in the task of its handler; yield its id: the request's, the metadata's, or a new one.

    InvalidRequest if the request's id is malformed.
    """
    caller = current_context()
    request_id = checked_request_id(given_id) if given_id else caller.request_id or new_request_id()
    with CallTrace(models.tracer, replace(caller, request_id=request_id)).answering():
        yield request_id
