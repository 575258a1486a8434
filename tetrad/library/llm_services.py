"""LLM services: starts a local stack for a program's LLM, or connects to a target.

Used by AsyncLLM, which starts the services before the first request and releases them at its end. Knows no requests.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tetrad.frontend.config import FrontendSettings
from tetrad.library.aside import run_aside
from tetrad.library.engine_args import EngineArgs
from tetrad.services.errors import InvalidRequest, Unavailable
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.service_names import kind_of

_START_TIMEOUT_S = 600.0
_FILE_LIMITS = ("max_media_bytes", "max_audio_bytes", "max_video_bytes")
_LIMITS_OF_PARAMS = ("max_n", "max_stop_strings", "max_stop_chars", "max_bad_words", "max_bad_word_chars")
_NO_LIMIT = 1 << 31


class Services(Protocol):
    """The services of an AsyncLLM: started for it, or running elsewhere."""

    async def start(self) -> FrontendSettings:
        """Wait until the services are ready, and return the frontend settings with their addresses."""

    async def close(self) -> None:
        """Release the services."""

    def abandon(self) -> None:
        """Release the services without an event loop."""


class LocalServices:
    """Services that run as child processes.

    Args:
        args: arguments of the services.
    """

    def __init__(self, args: EngineArgs) -> None:
        self._args = args
        self._stack: LocalStack | None = None

    async def start(self) -> FrontendSettings:
        """Find the model and start the stack."""
        settings = await run_aside(partial(self._args.stack_settings, report=_tell))
        self._stack = LocalStack(settings)
        try:
            await self._stack.start(timeout_s=_START_TIMEOUT_S)
        except TimeoutError as error:
            raise Unavailable(f"The services were not ready after {_START_TIMEOUT_S:.0f} s.") from error
        return _of_one_caller(self._stack.frontend_settings)

    async def close(self) -> None:
        """Stop the stack."""
        if self._stack is not None:
            await self._stack.close()

    def abandon(self) -> None:
        """Release the stack, which then ends by itself."""
        if self._stack is not None:
            self._stack.abandon()


class RemoteServices:
    """Running services that were started elsewhere.

    Args:
        target: "TOKENIZER,ENGINE[,ENGINE...]" (gRPC addresses), or the directory of a local stack.
        admin_target: admin ports of the engines, "HOST:PORT[,HOST:PORT...]". None: those of a stack's directory. For addresses
            there is no default, because another engine may listen on the default admin port.
        frontend: further settings of the frontend.

    Raises:
        InvalidRequest: the target is neither.
    """

    def __init__(self, target: str, admin_target: str | None = None, **frontend: Any) -> None:
        addresses = _addresses(target)
        if admin_target is not None:
            addresses["engine_admin_targets"] = tuple(part.strip() for part in admin_target.split(","))
        self._settings = FrontendSettings(**{**frontend, **addresses})

    async def start(self) -> FrontendSettings:
        """Return the frontend settings with the addresses."""
        return _of_one_caller(self._settings)

    async def close(self) -> None:
        """Do nothing: the services keep running."""

    def abandon(self) -> None:
        """Do nothing: the services keep running."""


def _of_one_caller(settings: FrontendSettings) -> FrontendSettings:
    """Return settings without the limits that protect other clients, because a library has one client."""
    # The size of messages remains the limit of a file.
    changes = {"max_answer_logprobs": 0, **dict.fromkeys(_FILE_LIMITS, settings.max_message_bytes)}
    return settings.model_copy(update=changes | dict.fromkeys(_LIMITS_OF_PARAMS, _NO_LIMIT))


def _tell(line: str) -> None:
    """Print a line about slow work, for example a download, on stderr."""
    if sys.stderr is not None:  # a program may have none
        sys.stderr.write(f"{line}\n")


def _addresses(target: str) -> dict[str, Any]:
    directory = Path(target.removeprefix("unix:"))
    if directory.is_dir():
        sockets = directory.resolve()
        return {
            "tokenizer_targets": _sockets_of(sockets, "tokenizer"),
            "engine_targets": _sockets_of(sockets, "engine-core"),
            "engine_admin_targets": _sockets_of(sockets, "engine-core-admin"),
        }
    tokenizer, *engines = (part.strip() for part in target.split(","))
    if not tokenizer or not engines or not all(engines):
        raise InvalidRequest(
            f"target={target!r} is neither 'TOKENIZER,ENGINE[,ENGINE...]' (for instance '127.0.0.1:50051,127.0.0.1:50052')"
            " nor the directory of a running local stack.",
            field="target",
        )
    return {"tokenizer_targets": (tokenizer,), "engine_targets": tuple(engines), "engine_admin_targets": ()}


def _sockets_of(directory: Path, kind: str) -> tuple[str, ...]:
    """Return the addresses of a stack's services of one kind, in the order of their numbers."""
    names = sorted((path.stem for path in directory.glob(f"{kind}*.sock") if kind_of(path.stem) == kind), key=_by_number)
    return tuple(f"unix:{directory}/{name}.sock" for name in names or [kind])


def _by_number(name: str) -> tuple[int, str]:
    return len(name), name
