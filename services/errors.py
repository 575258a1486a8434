"""Errors: one tree, and the status code that each has.

    TetradError
    ├── InvalidRequest       INVALID_ARGUMENT     the caller must change the request
    │   ├── PromptTooLong
    │   └── UnsupportedArgument                   an argument of vLLM's that Tetrad has no use for; Python only
    ├── Unauthenticated      UNAUTHENTICATED
    ├── PermissionDenied     PERMISSION_DENIED    known or not: not this caller
    ├── NotFound             NOT_FOUND            no such model, adapter, method
    ├── AlreadyExists        ALREADY_EXISTS       an id that is in use, a profile that is being recorded
    ├── FailedPrecondition   FAILED_PRECONDITION  not in this state; revisions that do not match
    │   └── ModelError                            files that cannot be loaded: broken, or not supported
    ├── Overloaded           RESOURCE_EXHAUSTED   queue full; carries retry_after_s
    ├── DeadlineExceeded     DEADLINE_EXCEEDED
    ├── Unavailable          UNAVAILABLE          starting, draining, lost: try again
    ├── Unsupported          UNIMPLEMENTED
    └── InternalError        INTERNAL             our bug, or a device that failed
        └── PoisonousRequest                      the request that took processes down, alone at last

Messages name the value, the limit and what to do. Raised anywhere, mapped once to and from what gRPC carries (status.py), and
turned into HTTP by the frontend; here gRPC is known by the numbers of its codes alone. Input errors never reach the scheduler
and never end a process.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Self


class Code(Enum):
    """The status codes of gRPC that errors have, by their numbers."""

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
        message: for people; names the value, the limit and what to do.
        field: the request field at fault, for BadRequest field violations.
        reason: UPPER_SNAKE, for programs; defaults to the class's reason.
        metadata: facts for programs.
        retry_after_s: when trying again may help, in seconds.
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
    """The request itself is wrong; trying it again unchanged cannot help."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the model's context. Clients look for the reason and for how the message begins."""

    reason = "CONTEXT_LENGTH_EXCEEDED"

    @classmethod
    def of_tokens(cls, num_prompt_tokens: int, max_model_len: int, *, field: str) -> Self:
        """Return the error of a prompt of so many tokens, which leaves no room for one more."""
        return cls(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {num_prompt_tokens + 1} "
            f"tokens ({num_prompt_tokens} in the prompt, at least 1 in the output). Please reduce the length of the prompt.",
            field=field,
        )


class UnsupportedArgument(InvalidRequest, NotImplementedError):
    """An argument or a method of vLLM's that cannot work yet; the message says why."""

    reason = "UNSUPPORTED_ARGUMENT"


class Unauthenticated(TetradError):
    """No credentials, or wrong ones."""

    code = Code.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDenied(TetradError):
    """The caller may not do that."""

    code = Code.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class NotFound(TetradError):
    """The named thing does not exist."""

    code = Code.NOT_FOUND
    reason = "NOT_FOUND"


class AlreadyExists(TetradError):
    """The requested object or action exists or runs already."""

    code = Code.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class FailedPrecondition(TetradError):
    """Right request, wrong state."""

    code = Code.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"


class ModelError(FailedPrecondition):
    """Model files that cannot be served: broken, incomplete, or of an architecture that is not supported."""

    reason = "MODEL_NOT_LOADABLE"


class Overloaded(TetradError):
    """Too much is queued; `retry_after_s` says when to come back."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "OVERLOADED"


class DeadlineExceeded(TetradError):
    """The request's time is over."""

    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Unavailable(TetradError):
    """The service is starting, draining or gone; the same request may succeed later or elsewhere."""

    code = Code.UNAVAILABLE
    reason = "UNAVAILABLE"


class Unsupported(TetradError, NotImplementedError):
    """This server cannot do that at all."""

    code = Code.UNIMPLEMENTED
    reason = "UNSUPPORTED"


class InternalError(TetradError):
    """A bug of ours, or a device that failed."""


class PoisonousRequest(InternalError):
    """A request under which workers, engine cores or tokenizers died again and again, the last time alone."""

    reason = "POISONOUS_REQUEST"


def one_line(error: BaseException) -> str:
    """Return the first line of what an error of a library says, without its stop, at most 300 characters; else its type."""
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__
