"""Preparations: requests that wait for their grammars.

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
    """Tasks that compile.

    Args:
        compiler: what makes grammars; closed with this.
        on_ready: called with a request that may be scheduled now, and its state.
        on_failed: called with a request that cannot be, and why.
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
        """Give a request up that has ended; one that is not being prepared is no error."""
        task = self._tasks.pop(request.key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Give up; no callback follows."""
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
            if output:  # an engine was lost: go on where it stood
                await self._compiler.resume(state, output)
        except TetradError as error:
            self._fail(request, error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic of the library's is no Exception; unseen, the request would wait for ever
            log.exception("grammar.preparation_failed", **request.context.log_fields(request.request_id))
            self._fail(request, InternalError(f"The constraint could not be prepared: {error}."))
        else:
            del self._tasks[request.key]
            self._on_ready(request, state)

    def _fail(self, request: Request, error: TetradError) -> None:
        del self._tasks[request.key]
        self._on_failed(request, error)
