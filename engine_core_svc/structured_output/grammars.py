"""Grammars: the constrained requests of a scheduler, and whether they may be planned.

Called by the scheduler, on its thread; without constrained requests it costs nothing. A constrained request waits for its own
token and the mask that follows from it, so it has at most one step in flight; the rest of the batch continues. All constrained
requests wait together: otherwise a request that once misses a step would stay in a different batch, and a step with half of
the rows takes nearly as long. Drafts are cut to those that the constraint allows; each has its own mask.

Preparations compile the grammars of requests that wait for them, outside of the scheduler.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from tetrad.engine_core_svc.core.plan import EngineCoreOutput, GrammarMasks, ModelRunnerOutput, SchedulerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.structured_output.compiler import GrammarCompiler
from tetrad.engine_core_svc.structured_output.constraint import Constraint, refusal
from tetrad.engine_core_svc.structured_output.filler import Advance, Filler
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.services.errors import InternalError, TetradError
from tetrad.services.log import get_logger
from tetrad.services.rpc.columns import U32_BYTES


@dataclass(frozen=True, slots=True)
class GrammarEnd:
    """A request that its constraint has ended: normally if there is no error."""

    key: int
    error: TetradError | None


class Grammars:
    """Grammar states by request; holds all constrained requests while a token or mask of any of them is missing.

    Args:
        filler: advances states and computes masks.
        on_change: called when requests may be planned again, or have ended.
    """

    def __init__(self, filler: Filler, on_change: Callable[[], None] = lambda: None) -> None:
        self._filler = filler
        self.on_change = on_change
        self._states: dict[int, GrammarState] = {}
        self._requests: dict[int, Request] = {}
        self._awaited_step: int | None = None
        self._is_filling = False
        self._ends: list[GrammarEnd] = []

    @property
    def num_requests(self) -> int:
        """The number of unfinished constrained requests."""
        return len(self._states)

    def add(self, request: Request, state: GrammarState) -> None:
        """Add a request, with its state, that will wait for its first step."""
        self._states[request.key], self._requests[request.key] = state, request
        request.sizes = replace(request.sizes, mask_bytes=U32_BYTES * (state.vocabulary.num_words + 1))
        request.is_held = self._awaited_step is not None or self._is_filling
        self._note_end(request.key)

    def remove(self, request: Request) -> None:
        """Forget a request that has ended; a request without a constraint is ignored."""
        if self._states.pop(request.key, None) is not None:
            del self._requests[request.key]

    def take_ends(self) -> list[GrammarEnd]:
        """Return the requests that their constraints have ended since the last call."""
        ends, self._ends = self._ends, []
        return ends

    def masks(self, plan: SchedulerOutput) -> GrammarMasks | None:
        """Return the masks of the requests that sample in this plan, and hold all constrained requests from now on."""
        if not self._states:
            return None
        step_id = plan.step_id
        keys = [key for key, request in self._requests.items() if request.last_step_id == step_id and request.num_placeholders]
        if not keys:
            return None
        self._awaited_step = step_id
        self._set_held(True)
        counts = [1 + len(plan.draft_tokens.get(key, ())) for key in keys]
        masks = np.stack([mask for key, count in zip(keys, counts, strict=True) for mask in self._states[key].masks[:count]])
        rows = [key for key, count in zip(keys, counts, strict=True) for _ in range(count)]
        return GrammarMasks(rows, masks.astype("<u4", copy=False).tobytes(), masks.shape[1])

    def refuse_misfits(self, result: ModelRunnerOutput) -> None:
        """Turn each token that its request's mask excludes into a failure of that request.

        A worker reports itself that no token is left to sample. But it may write the end of reasoning (thinking_token_budget)
        although allowed_token_ids excludes it.
        """
        if not self._states:
            return
        for index in reversed(range(len(result.keys))):
            state = self._states.get(result.keys[index])
            misfit = None if state is None else state.find_misfit(result.token_ids[index])
            if misfit is not None:
                result.failures[result.keys[index]] = refusal(
                    f"Token {misfit} had to come next, which the constraint does not allow here: the "
                    "request's parameters contradict each other."
                )
                del result.keys[index]
                del result.token_ids[index]

    def advance(self, step_id: int, outputs: Iterable[EngineCoreOutput]) -> None:
        """Advance the states of unfinished requests by the tokens of a step."""
        if step_id != self._awaited_step:
            return
        self._awaited_step = None
        brought = [output for output in outputs if output.request.key in self._states]
        if not brought:
            self._open()
            return
        self._is_filling = True
        advances = [
            Advance(self._states[output.request.key], output.new_token_ids, output.request.draft_ids) for output in brought
        ]
        self._filler.submit(advances, lambda: self._take_masks([output.request for output in brought]))

    def close(self) -> None:
        """Accept no more work."""
        self._filler.close()

    def forget_worker(self) -> None:
        """Stop waiting for a step: the worker is lost, and its tokens will be sampled again."""
        self._awaited_step = None
        self._open()

    def _take_masks(self, requests: Iterable[Request]) -> None:
        self._is_filling = False
        for request in requests:
            state = self._states.get(request.key)
            if state is not None:  # else it ended meanwhile
                request.draft_ids = request.draft_ids[: len(state.draft_masks)]
                self._note_end(request.key)
        self._open()
        self.on_change()

    def _note_end(self, key: int) -> None:
        state = self._states[key]
        if state.is_complete or state.error is not None:
            self._ends.append(GrammarEnd(key, state.error))

    def _open(self) -> None:
        if self._awaited_step is None and not self._is_filling:
            self._set_held(False)

    def _set_held(self, held: bool) -> None:
        for request in self._requests.values():
            request.is_held = held


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
