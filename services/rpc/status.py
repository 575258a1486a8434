"""Status: converts errors to and from google.rpc.Status, the form in which gRPC sends them.

Used by interceptors on servers, by clients, and by wire files whose streams carry answers of many requests. Knows the tree of
errors.py, which does not import gRPC, so that a scheduler or a model runner runs without it.
"""

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from tetrad.services.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InternalError,
    InvalidRequest,
    ModelError,
    NotFound,
    Overloaded,
    PermissionDenied,
    PoisonousRequest,
    PromptTooLong,
    TetradError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

DOMAIN = "tetrad"
_DETAILS = "grpc-status-details-bin"
_MAX_CHARS = 1_000
"""Maximum length of a message in a status: it may quote a client's input, occurs twice, and metadata has a limit."""

_BY_REASON: dict[str, type[TetradError]] = {cls.reason: cls for cls in (PromptTooLong, ModelError, PoisonousRequest)}
_RENAMED = {"PROMPT_TOO_LONG": PromptTooLong.reason}
"""Reasons that services of earlier releases send under another name."""
_BY_CODE: dict[int, type[TetradError]] = {
    cls.code.value: cls
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
    """Return an error as google.rpc.Status: code, message, ErrorInfo and, if they apply, BadRequest and RetryInfo."""
    message = error.message if len(error.message) <= _MAX_CHARS else f"{error.message[:_MAX_CHARS]} ..."
    # It may quote half of a surrogate pair, which messages of gRPC cannot contain.
    message = message.encode(errors="replace").decode()
    details: list[any_pb2.Any] = [
        _any(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata))
    ]
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(_any(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(error.retry_after_s * 1000))
        details.append(_any(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(code=error.code.value, message=message, details=details)


def from_status(status: status_pb2.Status) -> TetradError:
    """Return the error for a google.rpc.Status; unknown codes become InternalError."""
    reason, field, retry_after_s, metadata = None, None, None, {}
    for detail in status.details:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        try:
            if detail.Unpack(info):
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Unpack(bad) and bad.field_violations:
                field = bad.field_violations[0].field
            elif detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
        except DecodeError:  # code and message are sufficient without it
            continue
    reason = _RENAMED.get(reason or "", reason)
    cls = _BY_REASON.get(reason or "") or _BY_CODE.get(status.code, InternalError)
    return cls(status.message, field=field, reason=reason, metadata=metadata, retry_after_s=retry_after_s)


def from_rpc_error(error: grpc.RpcError) -> TetradError:
    """Return the TetradError for a failed call, with the server's details if it sent any."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # details that contradict the code: trust the code
        status = None
    if status is not None:
        return from_status(status)
    code = error.code()
    return _BY_CODE.get(code.value[0], InternalError)(error.details() or code.name)


def has_details(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a Tetrad service ended the call: errors of gRPC itself and of proxies have no status details."""
    return any(key == _DETAILS for key, _ in error.trailing_metadata() or ())


def _any(
    message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest | error_details_pb2.RetryInfo,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
