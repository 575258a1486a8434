"""Gateway calls: runs and aborts the requests of one foreign API. Knows no messages.

A gateway ends a request by cancelling its call, or by an Abort call while the first call stays open. Both free the request's
blocks; Abort also ends the open call with the output so far and the finish reason "abort".
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc

from tetrad.frontend.api.grpc.call_limits import CallLimits, admit
from tetrad.frontend.api.grpc.traced_calls import traced_call
from tetrad.frontend.api.http.sse.rendering import drop_logprobs, num_logprobs_of, rendered
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.llm.pooling_job import PoolingJob
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.pooling import PoolingParams, PoolingRequestOutput
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import TetradError
from tetrad.services.request_context import VALID_REQUEST_ID

Message = TypeVar("Message")


def raise_failure(error: TetradError) -> NoReturn:
    """Raise the error, which sets the status of the call: the default `failure_of`, for APIs without failure messages."""
    raise error


@dataclass(frozen=True)
class GatewayRequest:
    """A decoded foreign request: arguments of AsyncLLM.add_request.

    Attributes:
        request_id: the gateway's id, by which it aborts the request. The request itself has another one if this is empty, or
            has not the form of a request id.
        prompt: text or ids.
        params: the sampling parameters.
        options: further arguments, by name.
    """

    request_id: str
    prompt: PromptType
    params: SamplingParams
    options: dict[str, Any] = field(default_factory=dict)


class GatewayCalls:
    """The calls of one API.

    Args:
        llm: runs the requests, unless a call names another one.
        limits: the time limits of calls.
    """

    def __init__(self, llm: AsyncLLM, limits: CallLimits) -> None:
        self._llm = llm
        self._limits = limits
        self._open: dict[str, list[_OpenCall]] = {}

    def admit(self, context: grpc.aio.ServicerContext) -> None:
        """Raise Overloaded if the server cannot accept a call now; set the deadline of the call."""
        admit(self._llm, self._limits, context)

    async def run(
        self,
        request: GatewayRequest,
        messages_of: Callable[[RequestOutput], Iterable[Message]],
        llm: AsyncLLM | None = None,
        *,
        failure_of: Callable[[TetradError], Message] = raise_failure,
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages of a request's outputs, in the task of the handler; closing the generator aborts the request.

        Args:
            request: the request to run.
            messages_of: makes the messages of one output, one by one; for many log-probabilities it runs in a side thread.
            llm: runs the request; None: the LLM of this object.
            failure_of: makes the last message of an accepted request that cannot be finished, or raises its error.

        Raises:
            TetradError: the request is invalid, or cannot be accepted; or `failure_of` raised it.
        """
        given_id = request.request_id
        with traced_call(self._llm, _usable(given_id)) as request_id, self._noted(given_id or request_id) as call:
            stream = await (llm or self._llm).add_request(request_id, request.prompt, request.params, **request.options)
            with closing(stream):
                call.begin(stream)
                try:
                    async for output in stream:
                        num_logprobs, messages = num_logprobs_of(output), iter(messages_of(output))
                        while (message := await rendered(num_logprobs, partial(next, messages, None))) is not None:
                            yield message
                        await drop_logprobs(output)
                except TetradError as error:
                    yield failure_of(error)

    async def pool(self, request_id: str, prompt: PromptType, params: PoolingParams) -> PoolingRequestOutput:
        """Return the answer of a pooling request with the gateway's id; see GatewayRequest.

        Raises:
            TetradError: the request is invalid, cannot be accepted, or was aborted.
        """
        with traced_call(self._llm, _usable(request_id)) as own_id, self._noted(request_id or own_id) as call:
            job = await self._llm.add_pooling_request(own_id, [prompt], [params])
            call.begin(job)
            [answer] = await job.answers()
            return answer

    def abort(self, request_ids: Iterable[str]) -> None:
        """Abort requests of this API; unknown ids, and requests of other APIs with the same ids, are ignored."""
        for request_id in request_ids:
            for call in self._open.get(request_id, ()):
                call.abort()

    def open_ids(self) -> frozenset[str]:
        """Return the ids of the requests that can be aborted."""
        return frozenset(self._open)

    @contextmanager
    def _noted(self, request_id: str) -> Iterator["_OpenCall"]:
        """Register a call, inside the context, so that `abort` finds it; also before its prompt is tokenized."""
        call, calls = _OpenCall(), self._open.setdefault(request_id, [])
        calls.append(call)
        try:
            yield call
        finally:
            calls.remove(call)
            if not calls:
                del self._open[request_id]


def _usable(given_id: str) -> str:
    """Return a gateway's id if it has the form of a request id, else an empty string.

    Gateways make ids of their clients' headers. HTTP ignores a header of another form.
    """
    return given_id if VALID_REQUEST_ID.fullmatch(given_id) else ""


class _OpenCall:
    """One call, from its arrival to its end."""

    def __init__(self) -> None:
        self._request: OutputStream | PoolingJob | None = None
        self._is_aborted = False

    def begin(self, request: OutputStream | PoolingJob) -> None:
        """Set the request that runs; abort it if the call has been aborted already."""
        self._request = request
        if self._is_aborted:
            request.abort()

    def abort(self) -> None:
        """Abort the request now, or as soon as it exists."""
        self._is_aborted = True
        if self._request is not None:
            self._request.abort()
