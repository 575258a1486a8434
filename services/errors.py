"""Errors: one tree, one table to and from gRPC status codes.

    TetradError
    ├── InvalidRequest       INVALID_ARGUMENT     the caller must change the request
    │   └── PromptTooLong
    ├── Unauthenticated      UNAUTHENTICATED
    ├── PermissionDenied     PERMISSION_DENIED    known or not: not this caller
    ├── NotFound             NOT_FOUND            no such model, adapter, method
    ├── AlreadyExists        ALREADY_EXISTS       a request id that is in use
    ├── FailedPrecondition   FAILED_PRECONDITION  not in this state; revisions that do not match
    │   └── ModelError                            files that cannot be loaded: broken, or not supported
    ├── Overloaded           RESOURCE_EXHAUSTED   queue full; carries retry_after_s
    ├── DeadlineExceeded     DEADLINE_EXCEEDED
    ├── Unavailable          UNAVAILABLE          starting, draining, lost: try again
    ├── Unsupported          UNIMPLEMENTED
    └── InternalError        INTERNAL             our bug, or a device that failed
        └── PoisonousRequest                      the request that took a worker down, alone at last

Messages name the value, the limit and what to do. Raised anywhere, mapped once (interceptors.py on servers, `from_rpc_error`
on clients), and turned into HTTP by the frontend. Input errors never reach the scheduler and never end a process.
"""

from collections.abc import Mapping

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

DOMAIN = "tetrad"


class TetradError(Exception):
    """Base of every error that crosses a service boundary.

    Args:
        message: for people; names the value, the limit and what to do.
        field: the request field at fault, for BadRequest field violations.
        reason: UPPER_SNAKE, for programs; defaults to the class's reason.
        metadata: facts for programs.
        retry_after_s: when trying again may help, in seconds.
    """

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: str = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.reason = reason or type(self).reason
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s


class InvalidRequest(TetradError, ValueError):
    """The request itself is wrong; trying it again unchanged cannot help."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the model's context."""

    reason = "PROMPT_TOO_LONG"


class Unauthenticated(TetradError):
    """No credentials, or wrong ones."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDenied(TetradError):
    """The caller may not do that."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class NotFound(TetradError):
    """The named thing does not exist."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "NOT_FOUND"


class AlreadyExists(TetradError):
    """The id is in use."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class FailedPrecondition(TetradError):
    """Right request, wrong state."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"


class ModelError(FailedPrecondition):
    """Model files that cannot be served: broken, incomplete, or of an architecture that is not supported."""

    reason = "MODEL_NOT_LOADABLE"


class Overloaded(TetradError):
    """Too much is queued; `retry_after_s` says when to come back."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "OVERLOADED"


class DeadlineExceeded(TetradError):
    """The request's time is over."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Unavailable(TetradError):
    """The service is starting, draining or gone; the same request may succeed later or elsewhere."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class Unsupported(TetradError):
    """This server cannot do that at all."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "UNSUPPORTED"


class InternalError(TetradError):
    """A bug of ours, or a device that failed."""


class PoisonousRequest(InternalError):
    """A request under which workers died three times, the last time alone."""

    reason = "POISONOUS_REQUEST"


_BY_REASON: dict[str, type[TetradError]] = {cls.reason: cls for cls in (PromptTooLong, ModelError, PoisonousRequest)}
_BY_CODE: dict[int, type[TetradError]] = {
    cls.code.value[0]: cls
    for cls in (
        InvalidRequest,
        Unauthenticated,
        PermissionDenied,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        Overloaded,
        DeadlineExceeded,
        Unavailable,
        Unsupported,
        InternalError,
    )
}


def to_status(error: TetradError) -> status_pb2.Status:
    """Return the google.rpc.Status of an error: code, message, ErrorInfo and, where they apply, BadRequest and RetryInfo."""
    details: list[any_pb2.Any] = [
        _any(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata))
    ]
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(_any(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(error.retry_after_s * 1000))
        details.append(_any(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(code=error.code.value[0], message=error.message, details=details)


def from_status(status: status_pb2.Status) -> TetradError:
    """Return the error that a google.rpc.Status stands for; codes outside the table become InternalError."""
    reason, field, retry_after_s, metadata = None, None, None, {}
    for detail in status.details:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad) and bad.field_violations:
            field = bad.field_violations[0].field
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    cls = _BY_REASON.get(reason or "") or _BY_CODE.get(status.code, InternalError)
    return cls(status.message, field=field, reason=reason, metadata=metadata, retry_after_s=retry_after_s)


def from_rpc_error(error: grpc.RpcError) -> TetradError:
    """Return the error behind a failed call, with its details if the server sent any."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # details that contradict the code: trust the code
        status = None
    if status is not None:
        return from_status(status)
    code = error.code()
    return _BY_CODE.get(code.value[0], InternalError)(error.details() or code.name)


def one_line(error: BaseException) -> str:
    """Return the first line of what an error of a library says, without its stop, at most 300 characters; else its type."""
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__


def _any(
    message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest | error_details_pb2.RetryInfo,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
