"""OwnServer: provides the server of a command: the one at --url, or a local stack while the command runs.

Used by commands with the options `--url`, `--start-timeout-s` and those of the engine. Knows nothing of their requests.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

from tetrad.cli.options import engine_args
from tetrad.cli.startup import StartProgress, compile_kernels, free_port, starting_line, too_slow
from tetrad.library.aside import run_aside
from tetrad.library.engine_args import EngineArgs
from tetrad.services.errors import InvalidRequest
from tetrad.services.log import configure_command_logging
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.service_children import Adapt

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 600.0
START_TIMEOUT_HELP = f"Maximum time to start the server, in seconds. Unset: {_START_TIMEOUT_S:g}."

WaitFailed = Callable[[], Coroutine[Any, Any, object]]
"""Waits until the server has failed, and raises the reason."""


@contextlib.asynccontextmanager
async def serving(options: argparse.Namespace, *, adapt: Adapt | None = None) -> AsyncIterator[tuple[str, WaitFailed]]:
    """Yield the server's URL and a function that waits for its failure; for a server at --url it waits for ever.

    Args:
        options: the options of the command.
        adapt: see LocalStack.

    Raises:
        InvalidRequest: options of the engine or of its start are given together with a URL.
        TetradError: the local stack did not start.
    """
    args = engine_args(options)
    if options.url is not None:
        if args != EngineArgs():
            text = "With --url, the server decides on its model and its engine: leave --model and the engine's flags out."
            raise InvalidRequest(text, field="url")
        if options.start_timeout_s is not None:
            raise InvalidRequest("With --url, no server is started: leave --start-timeout-s out.", field="start_timeout_s")
        yield options.url, asyncio.Event().wait
        return
    configure_command_logging(args.log_level)
    progress = StartProgress()
    port = free_port(_HOST, 0)
    settings = await run_aside(partial(args.stack_settings, report=progress.say, host=_HOST, port=port))
    await run_aside(partial(compile_kernels, settings, progress.say))
    timeout_s = _START_TIMEOUT_S if options.start_timeout_s is None else options.start_timeout_s
    stack = LocalStack(settings, serve=True, on_state=progress.on_state, adapt=adapt)
    try:
        progress.say(starting_line(settings))
        try:
            await stack.start(timeout_s=timeout_s)
        except TimeoutError:
            raise too_slow(timeout_s) from None
        yield f"http://{_HOST}:{port}", stack.wait_failed
    finally:
        await stack.close()


async def unless_failed(work: Coroutine[Any, Any, None], failure: Coroutine[Any, Any, object]) -> None:
    """Wait for `work`; if `failure` ends first, cancel the work and raise the server's failure."""
    working, failing = asyncio.create_task(work), asyncio.create_task(failure)
    try:
        await asyncio.wait({working, failing}, return_when=asyncio.FIRST_COMPLETED)
        await (working if working.done() else failing)
    finally:
        working.cancel()
        failing.cancel()
        await asyncio.gather(working, failing, return_exceptions=True)
