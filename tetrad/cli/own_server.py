"""OwnServer: provides the server of a command: the one at --url, or a local stack while the command runs.

Used by commands with the options `--url`, `--start-timeout-s` and those of the engine. Knows nothing of their requests.
"""

import argparse
import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from tetrad.cli.options import engine_args
from tetrad.cli.startup import StartProgress, compile_kernels, free_port, starting_line, too_slow
from tetrad.library.engine_args import EngineArgs
from tetrad.services.errors import InvalidRequest
from tetrad.services.log import configure_command_logging
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.service_children import Adapt

_HOST = "127.0.0.1"

Result = TypeVar("Result")
WaitFailed = Callable[[], Coroutine[Any, Any, object]]
"""Waits until the server has failed, and raises the reason."""


@contextlib.asynccontextmanager
async def serving(options: argparse.Namespace, *, adapt: Adapt | None = None) -> AsyncIterator[tuple[str, WaitFailed]]:
    """Yield the server's URL and a function that waits for its failure; for a server at --url it waits for ever.

    Args:
        options: the options of the command.
        adapt: see LocalStack.

    Raises:
        InvalidRequest: options of the engine are given together with a URL.
        TetradError: the local stack did not start.
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
    settings = await _aside(partial(args.stack_settings, report=progress.say, host=_HOST, port=port))
    await _aside(partial(compile_kernels, settings, progress.say))
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


async def _aside(work: Callable[[], Result]) -> Result:
    """Return the result of work that blocks. A cancelled caller, and the end of the process, do not wait for it.

    They would wait for a thread of `asyncio.to_thread`, and so a signal for the end of a download.
    """
    result: Future[Result] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised to the caller
            result.set_exception(error)

    threading.Thread(target=run, name="start", daemon=True).start()
    return await asyncio.wrap_future(result)


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
