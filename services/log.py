"""Logs: structlog events, as JSON unless stderr is a terminal, with `request_id` in every line about a request.

If a task processes one request at a time (request_context.py), its lines carry that request's ids automatically; a task for
many requests must name them in its lines.
"""

import logging
import sys

import structlog

from tetrad.services.output.library_stderr import LibraryStderr
from tetrad.services.output.nonblocking_output import use_nonblocking_output
from tetrad.services.request_context import add_context


def configure_logging(service: str, *, level: str = "info", json: bool | None = None) -> None:
    """Send the logs of this process to stderr, and make stderr non-blocking.

    Args:
        service: name of the service, the field `service` of every line.
        level: "debug", "info", "warning" or "error".
        json: whether each line is a JSON object; None: JSON unless stderr is a terminal.
    """
    use_nonblocking_output("stderr", on_dropped=_report_dropped)
    as_json = not sys.stderr.isatty() if json is None else json
    shared: list[structlog.typing.Processor] = [
        # Not a context variable: threads do not inherit those, and device and libraries log from threads of their own.
        lambda _, __, event: {"service": service, **event},
        add_context,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if as_json else structlog.dev.set_exc_info,
    ]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer() if as_json else _console(colors=True)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _bridge_standard_library(shared, renderer, max(_LEVELS[level], logging.WARNING))


def configure_command_logging(level: str, *, also_stdout: bool = False) -> None:
    """Send the events of a command that supervises services to stderr, and make stderr non-blocking.

    Args:
        level: as for `configure_logging`.
        also_stdout: whether to make stdout non-blocking, too. Not for commands whose results must be complete.
    """
    use_nonblocking_output("stderr", *["stdout"] * also_stdout, on_dropped=_report_dropped)
    configure_library_logging(level)


def configure_library_logging(level: str = "warning") -> None:
    """Send events to stderr as readable lines, for Tetrad as a library in a program.

    The program's own `logging`, and a structlog that the program has configured itself, stay unchanged.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_context,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _console(colors=sys.stderr is not None and sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(library_stderr),  # type: ignore[arg-type] # it needs only write and flush
    )


def get_report_logger() -> structlog.typing.FilteringBoundLogger:
    """Return a logger for lines that a program requested: it writes them at info level, regardless of the program's level."""
    wrapper = structlog.make_filtering_bound_logger(_LEVELS["info"])
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(None, wrapper_class=wrapper)
    return logger


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """Return the process's logger."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


def _report_dropped(num_lines: int) -> None:
    get_logger().warning("log.dropped", num_lines=num_lines)


library_stderr = LibraryStderr(_report_dropped)
"""Output for the library's lines in a program: its events, and those of the services that it runs."""


def _console(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    # Plain tracebacks: the other formatters print the local variables of every frame, and so keys and prompts.
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _bridge_standard_library(
    shared: list[structlog.typing.Processor], renderer: structlog.typing.Processor, level: int
) -> None:
    """Send log lines of libraries (grpc, uvicorn, transformers) through the same renderer, from warnings up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
