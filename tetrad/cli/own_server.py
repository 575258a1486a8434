"""OwnServer: the server that a command works with: the one at --url, or a local stack for as long as the command runs.

Used by commands that have `--url`, `--start-timeout-s` and the engine's options. Knows nothing of what they ask the server.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from tetrad.cli.options import engine_args
from tetrad.cli.startup import StartProgress, compile_kernels, free_port, starting_line, too_slow
from tetrad.library.engine_args import EngineArgs
from tetrad.services.errors import InvalidRequest
from tetrad.services.log import configure_command_logging
from tetrad.stack.local_stack import Adapt, LocalStack

_HOST = "127.0.0.1"

WaitFailed = Callable[[], Coroutine[Any, Any, object]]
"""Waits until the server is given up, and raises why."""


@contextlib.asynccontextmanager
async def serving(options: argparse.Namespace, *, adapt: Adapt | None = None) -> AsyncIterator[tuple[str, WaitFailed]]:
    """Give the server's URL, and what waits for its failure: for ever, where the server is not ours.

    Args:
        options: the command's.
        adapt: as in LocalStack.

    Raises:
        InvalidRequest: there is a URL, and something that only a server of our own can be told.
        TetradError: our own did not start.
    """
    args = engine_args(options)
    if options.url is not None:
        if args != EngineArgs():
            text = "With --url, the server decides on its model and its engine: leave --model and the engine's flags out."
            raise InvalidRequest(text, field="url")
        yield options.url, asyncio.Event().wait
        return
    configure_command_logging(args.log_level)
    progress = StartProgress()
    port = free_port(_HOST, 0)
    settings = await asyncio.to_thread(args.stack_settings, report=progress.say, host=_HOST, port=port)
    await asyncio.to_thread(compile_kernels, settings, progress.say)
    stack = LocalStack(settings, serve=True, on_state=progress.on_state, adapt=adapt)
    try:
        progress.say(starting_line(settings))
        try:
            await stack.start(timeout_s=options.start_timeout_s)
        except TimeoutError:
            raise too_slow(options.start_timeout_s) from None
        yield f"http://{_HOST}:{port}", stack.wait_failed
    finally:
        await stack.close()


async def unless_failed(work: Coroutine[Any, Any, None], failure: Coroutine[Any, Any, object]) -> None:
    """Do the work; end it with the server's failure if that comes first."""
    working, failing = asyncio.create_task(work), asyncio.create_task(failure)
    try:
        await asyncio.wait({working, failing}, return_when=asyncio.FIRST_COMPLETED)
        await (working if working.done() else failing)
    finally:
        working.cancel()
        failing.cancel()
        await asyncio.gather(working, failing, return_exceptions=True)
