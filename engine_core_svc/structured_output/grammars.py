"""Grammars: the constrained requests of a scheduler, and when they may be planned.

Called by the scheduler, on its thread; without constrained requests it costs nothing. A constrained request waits for its own
token and the mask that follows from it, so it has at most one step in flight; the rest of the batch continues. All constrained
requests wait together: otherwise those that once missed a step would stay in another batch than the others, and a step with
half of the rows takes nearly as long. Drafts are cut to those that the constraint allows; each has its own mask.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from tetrad.engine_core_svc.core.plan import EngineCoreOutput, GrammarMasks, ModelRunnerOutput, SchedulerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.structured_output.constraint import refusal
from tetrad.engine_core_svc.structured_output.filler import Advance, Filler
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.services.errors import TetradError
from tetrad.services.rpc.columns import U32_BYTES


@dataclass(frozen=True, slots=True)
class GrammarEnd:
    """A request that its constraint ends: well if there is no error."""

    key: int
    error: TetradError | None


class Grammars:
    """States by request, and the gate that all of them wait at.

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
        """Constrained requests that are unfinished."""
        return len(self._states)

    def add(self, request: Request, state: GrammarState) -> None:
        """Take over the state of a request that is about to wait for its first step."""
        self._states[request.key], self._requests[request.key] = state, request
        request.sizes = replace(request.sizes, mask_bytes=U32_BYTES * (state.vocabulary.num_words + 1))
        request.is_held = self._awaited_step is not None or self._is_filling
        self._note_end(request.key)

    def remove(self, request: Request) -> None:
        """Forget a request that has ended; one that is not constrained is no error."""
        if self._states.pop(request.key, None) is not None:
            del self._requests[request.key]

    def take_ends(self) -> list[GrammarEnd]:
        """Return the requests that their constraints have ended since the last call."""
        ends, self._ends = self._ends, []
        return ends

    def masks(self, plan: SchedulerOutput) -> GrammarMasks | None:
        """Return the masks of the requests that sample in this plan; from then on all constrained requests wait."""
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
        """Turn tokens that their request's mask does not allow into failures of that request.

        A worker with nothing left to choose from reports that itself; what it may write all the same is the end of reasoning
        (thinking_token_budget), which allowed_token_ids may exclude.
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
        """Move the states of unfinished requests on by what a step brought them."""
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
        """Take no more work."""
        self._filler.close()

    def forget_worker(self) -> None:
        """No step is in flight any more; what was sampled in it is sampled again."""
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
