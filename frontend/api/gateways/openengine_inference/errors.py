"""Errors: encodes the failure of an accepted call as an EngineError. Calls that are not accepted end with a status instead."""

from tetrad.openengine_api import common_pb2
from tetrad.services.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    TetradError,
    Unavailable,
    Unsupported,
    UnsupportedArgument,
)

# The first class of which an error is an instance determines its code.
_CODES: tuple[tuple[type[TetradError], common_pb2.ErrorCode], ...] = (
    (UnsupportedArgument, common_pb2.ERROR_CODE_UNSUPPORTED_FEATURE),
    (Unsupported, common_pb2.ERROR_CODE_UNSUPPORTED_FEATURE),
    (InvalidRequest, common_pb2.ERROR_CODE_INVALID_ARGUMENT),
    (NotFound, common_pb2.ERROR_CODE_MODEL_NOT_FOUND),
    (Overloaded, common_pb2.ERROR_CODE_OVERLOADED),
    (DeadlineExceeded, common_pb2.ERROR_CODE_CANCELLED),
)
_RETRYABLE = (Overloaded, Unavailable)


def engine_error(error: TetradError) -> common_pb2.EngineError:
    """Return the encoded error for the last message of a stream."""
    message = common_pb2.EngineError(code=_code_of(error), message=error.message, retryable=isinstance(error, _RETRYABLE))
    if message.retryable and error.retry_after_s is not None:
        message.retry_after_ms = round(error.retry_after_s * 1000)
    message.details["tetrad.reason"] = error.reason
    if error.field:
        message.details["tetrad.field"] = error.field
    return message


def _code_of(error: TetradError) -> common_pb2.ErrorCode:
    if error.reason == "DRAINING":
        return common_pb2.ERROR_CODE_DRAINING
    found = (code for kind, code in _CODES if isinstance(error, kind))
    return next(found, common_pb2.ERROR_CODE_INTERNAL)
