"""Preparations: compiles the grammars of requests that wait for them.

Owned by the engine, on the event loop: one task for each request, which ends in a state or in an error, unless the request
ended before. Knows nothing of queues.
"""

import asyncio
from collections.abc import Callable

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.structured_output.compiler import GrammarCompiler
from tetrad.engine_core_svc.structured_output.constraint import Constraint
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.services.errors import InternalError, TetradError
from tetrad.services.log import get_logger

log = get_logger()


class Preparations:
    """The tasks that prepare requests, one per request.

    Args:
        compiler: makes the grammars; closed with this object.
        on_ready: called with a request that may be scheduled now, and its grammar state.
        on_failed: called with a request that cannot be prepared, and the error.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        on_ready: Callable[[Request, GrammarState], None],
        on_failed: Callable[[Request, TetradError], None],
    ) -> None:
        self._compiler = compiler
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, request: Request, constraint: Constraint) -> None:
        """Prepare a request; one of the callbacks follows, unless `stop` is called before."""
        self._tasks[request.key] = asyncio.create_task(self._prepare(request, constraint), name="grammar.prepare")

    def stop(self, request: Request) -> None:
        """Stop preparing a request that has ended; other requests are ignored."""
        task = self._tasks.pop(request.key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Cancel all preparations, without a callback, and close the compiler."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._compiler.close()

    async def _prepare(self, request: Request, constraint: Constraint) -> None:
        try:
            grammar = await self._compiler.compile(constraint.language)
            state = GrammarState(constraint, grammar)
            output = request.token_ids[request.num_prompt_tokens :]
            if output:  # the request is resumed from a lost engine core: continue after its output
                await self._compiler.resume(state, output)
        except TetradError as error:
            self._fail(request, error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic in the library is not an Exception; the request would wait for ever
            log.exception("grammar.preparation_failed", **request.context.log_fields(request.request_id))
            self._fail(request, InternalError(f"The constraint could not be prepared: {error}."))
        else:
            del self._tasks[request.key]
            self._on_ready(request, state)

    def _fail(self, request: Request, error: TetradError) -> None:
        del self._tasks[request.key]
        self._on_failed(request, error)
