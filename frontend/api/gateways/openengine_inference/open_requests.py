"""Open requests: the requests of OpenEngine's API by id; Inference runs them, Control aborts them. Knows no messages.

Each open request has a unique id. The ids of the last ended requests are stored: an Abort of one of them succeeds; an Abort of
an unknown request fails.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import TypeVar

import grpc

from tetrad.frontend.api.gateways.common.calls import GatewayCalls, GatewayRequest
from tetrad.frontend.api.grpc.call_limits import CallLimits
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.services.errors import AlreadyExists, NotFound, TetradError
from tetrad.services.request_context import checked_request_id, new_request_id

_NUM_ENDED = 4096

Message = TypeVar("Message")


class OpenRequests:
    """The open requests of one frontend.

    Args:
        llm: the first model.
        limits: the time limits of calls.
        num_ended: the number of ids of ended requests to store.
    """

    def __init__(self, llm: AsyncLLM, limits: CallLimits, num_ended: int = _NUM_ENDED) -> None:
        self._calls = GatewayCalls(llm, limits)
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._num_ended = num_ended

    def admit(self, context: grpc.aio.ServicerContext) -> None:
        """Raise an error if no call can be accepted now."""
        self._calls.admit(context)

    def new_id(self, wanted: str) -> str:
        """Return an id for a request without one: `wanted`, the call's X-Request-Id, or a new id if that is empty or in use."""
        return new_request_id() if not wanted or wanted in self._calls.open_ids() else wanted

    async def run(
        self,
        request: GatewayRequest,
        messages_of: Callable[[RequestOutput], Iterable[Message]],
        llm: AsyncLLM,
        failure_of: Callable[[TetradError], Message],
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages of a request's outputs; see GatewayCalls.run.

        Raises:
            AlreadyExists: an open request has the same id.
            TetradError: the request is invalid, or cannot be accepted.
        """
        # The ids of ended requests are stored: only an id of limited length may become one.
        checked_request_id(request.request_id)
        if request.request_id in self._calls.open_ids():
            raise AlreadyExists(f"An open request has the id {request.request_id!r}.", field="request_id")
        try:
            async with aclosing(self._calls.run(request, messages_of, llm, failure_of=failure_of)) as messages:
                async for message in messages:
                    yield message
        finally:
            self._note_ended(request.request_id)

    def abort(self, request_id: str) -> bool:
        """Abort a request; return whether it was still open.

        Raises:
            NotFound: no open or recently ended request has this id.
        """
        if request_id in self._calls.open_ids():
            self._calls.abort([request_id])
            return True
        if request_id not in self._ended:
            raise NotFound(f"The request {request_id[:64]!r} does not exist.", field="request_id", reason="REQUEST_NOT_FOUND")
        return False

    def abort_all(self) -> bool:
        """Abort all requests; return whether there were any."""
        ids = self._calls.open_ids()
        self._calls.abort(ids)
        return bool(ids)

    def _note_ended(self, request_id: str) -> None:
        self._ended[request_id] = None
        self._ended.move_to_end(request_id)
        if len(self._ended) > self._num_ended:
            self._ended.popitem(last=False)
