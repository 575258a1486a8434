"""Context: the server's side of an exchange, with the methods of grpc.aio.ServicerContext that servicers use."""

from typing import Any, NoReturn

import grpc

from tetrad.services.direct.exchange import Exchange, Metadata, Status
from tetrad.services.direct.pipe import PipeClosedError


class Context:
    """The servicer's access to a call, apart from the request."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._status = Status(grpc.StatusCode.OK)

    @property
    def status(self) -> Status:
        """The status that the call gets when its handler returns or aborts it."""
        return self._status

    def invocation_metadata(self) -> Metadata:
        """Return the client's metadata."""
        return self._exchange.metadata

    def peer(self) -> str:
        """Return a placeholder for the client's address."""
        return "direct"

    def time_remaining(self) -> float | None:
        """Return the seconds until the client's deadline; None: it has none."""
        return self._exchange.time_remaining_s

    def code(self) -> grpc.StatusCode:
        """Return the code of the status."""
        return self._status.code

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the code of the status."""
        self._status = self._status._replace(code=code)

    def set_details(self, details: str) -> None:
        """Set the text of the status."""
        self._status = self._status._replace(details=details)

    async def read(self) -> Any:
        """Return the client's next message; grpc.aio.EOF after the last one."""
        return await self._exchange.requests.get()

    async def write(self, message: Any) -> None:
        """Send a response. Raises grpc.aio.InternalError if the call has ended."""
        try:
            await self._exchange.responses.put(message)
        except PipeClosedError:
            raise grpc.aio.InternalError("The call is over.") from None

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with this status."""
        self._status = Status(code, details, trailing_metadata)
        raise grpc.aio.AbortError(details)

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the call with this status."""
        await self.abort(status.code, status.details, status.trailing_metadata or ())
