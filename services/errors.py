"""Errors: one tree of exceptions, and the status code of each.

    TetradError
    ├── InvalidRequest       INVALID_ARGUMENT     the caller must change the request
    │   ├── PromptTooLong
    │   └── UnsupportedArgument                   an argument of vLLM that Tetrad does not support; Python only
    ├── Unauthenticated      UNAUTHENTICATED
    ├── PermissionDenied     PERMISSION_DENIED    this caller may not do it, with or without credentials
    ├── NotFound             NOT_FOUND            no such model, adapter, method
    ├── AlreadyExists        ALREADY_EXISTS       an id in use, a profile that is being recorded
    ├── FailedPrecondition   FAILED_PRECONDITION  impossible in this state; revisions that do not match
    │   └── ModelError                            files that cannot be loaded: broken, or not supported
    ├── Overloaded           RESOURCE_EXHAUSTED   queue full; carries retry_after_s
    ├── DeadlineExceeded     DEADLINE_EXCEEDED
    ├── Unavailable          UNAVAILABLE          starting, draining, lost: try again
    ├── Unsupported          UNIMPLEMENTED
    └── InternalError        INTERNAL             a bug, or a device that failed
        └── PoisonousRequest                      a request that crashed processes repeatedly, the last time running alone

Messages name the value, the limit and what to do. Errors are raised anywhere, mapped in one place to and from gRPC's status
(status.py), and mapped to HTTP by the frontend; this file uses only the numbers of gRPC's codes. Input errors never reach the
scheduler and never end a process.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Self


class Code(Enum):
    """The gRPC status codes of the errors, with gRPC's numbers."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class TetradError(Exception):
    """Base of every error that crosses a service boundary.

    Args:
        message: text for people; names the value, the limit and what to do.
        field: the request field at fault, for BadRequest field violations.
        reason: code for programs in UPPER_SNAKE; default: the class's reason.
        metadata: further facts for programs.
        retry_after_s: seconds after which a retry may succeed.
    """

    code: Code = Code.INTERNAL
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
    """The request is wrong; repeating it unchanged cannot succeed."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the model's context. Clients recognize the reason and the beginning of the message.

    Attributes:
        num_tokens: number of tokens that were requested; None: not counted, or the error came from another service.
        max_model_len: the context's length, likewise.
    """

    reason = "CONTEXT_LENGTH_EXCEEDED"
    num_tokens: int | None = None
    max_model_len: int | None = None

    @classmethod
    def of_tokens(cls, num_prompt_tokens: int, max_model_len: int, *, generates: bool = True, field: str) -> Self:
        """Return the error for a prompt of `num_prompt_tokens` tokens; `generates`: it leaves no room for one output token."""
        parts = f" ({num_prompt_tokens} in the prompt, at least 1 in the output)" if generates else ""
        num_tokens = num_prompt_tokens + generates
        error = cls(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_tokens} tokens{parts}. Please reduce the length of the prompt.",
            field=field,
        )
        error.num_tokens, error.max_model_len = num_tokens, max_model_len
        return error


class UnsupportedArgument(InvalidRequest, NotImplementedError):
    """An argument or a method of vLLM that Tetrad does not support; the message states the reason."""

    reason = "UNSUPPORTED_ARGUMENT"


class Unauthenticated(TetradError):
    """Credentials are missing or wrong."""

    code = Code.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDenied(TetradError):
    """The caller may not do this."""

    code = Code.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class NotFound(TetradError):
    """The named object does not exist."""

    code = Code.NOT_FOUND
    reason = "NOT_FOUND"


class AlreadyExists(TetradError):
    """The requested object exists already, or the requested action runs already."""

    code = Code.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class FailedPrecondition(TetradError):
    """The request is correct but impossible in the present state."""

    code = Code.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"


class ModelError(FailedPrecondition):
    """The model's files cannot be served: broken, incomplete, or of an architecture that is not supported."""

    reason = "MODEL_NOT_LOADABLE"


class Overloaded(TetradError):
    """Too many requests are queued; `retry_after_s` is the time until a retry."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "OVERLOADED"


class DeadlineExceeded(TetradError):
    """The request's deadline has passed."""

    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Unavailable(TetradError):
    """The service is starting, draining or lost; the same request may succeed later or elsewhere."""

    code = Code.UNAVAILABLE
    reason = "UNAVAILABLE"


class Unsupported(TetradError, NotImplementedError):
    """This server does not support the request."""

    code = Code.UNIMPLEMENTED
    reason = "UNSUPPORTED"


class InternalError(TetradError):
    """A bug of Tetrad, or a device that failed."""


class PoisonousRequest(InternalError):
    """A request during which workers, engine cores or tokenizers crashed repeatedly, the last time running alone."""

    reason = "POISONOUS_REQUEST"


def one_line(error: BaseException) -> str:
    """Return a library error's first line, up to 300 characters without a full stop; the error's type if it has no text."""
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__
