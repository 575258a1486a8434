"""Step log: writes one line about each step (--enable-logging-iteration-details).

Called by the engine's metrics with each plan and each result. It knows from the plans alone which requests
compute their prompts.
"""

from dataclasses import dataclass

from tetrad.engine_core_svc.core.plan import SchedulerOutput
from tetrad.services.log import get_logger

log = get_logger()


@dataclass(slots=True)
class _Counts:
    """Requests that compute their prompts, and requests that generate, with their tokens, of one step."""

    num_context_requests: int = 0
    num_context_tokens: int = 0
    num_generation_requests: int = 0
    num_generation_tokens: int = 0

    def add(self, num_tokens: int, *, is_context: bool) -> None:
        if is_context:
            self.num_context_requests += 1
            self.num_context_tokens += num_tokens
        else:
            self.num_generation_requests += 1
            self.num_generation_tokens += num_tokens


class WrittenStepLog:
    """Writes the event `step.done` for each step."""

    def __init__(self) -> None:
        self._num_prompt_tokens: dict[int, int] = {}  # request key -> tokens of its prompt
        self._in_flight: dict[int, _Counts] = {}

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Count a plan's requests and tokens."""
        counts, columns = _Counts(), plan.cached_requests
        for key in plan.removed_keys:
            self._num_prompt_tokens.pop(key, None)
        for new in plan.new_requests:
            self._num_prompt_tokens[new.key] = new.num_prompt_tokens
            counts.add(new.num_scheduled_tokens, is_context=True)
        rows = zip(columns.keys, columns.num_scheduled_tokens, columns.num_computed_tokens, strict=True)
        for key, num_tokens, num_computed in rows:
            counts.add(num_tokens, is_context=num_computed < self._num_prompt_tokens.get(key, 0))
        self._in_flight[plan.step_id] = counts

    def note_result(self, step_id: int, seconds: float) -> None:
        """Write the line of a step."""
        counts = self._in_flight.pop(step_id, None)
        if counts is None:
            return
        log.info(
            "step.done",
            step_id=step_id,
            context_requests=counts.num_context_requests,
            context_tokens=counts.num_context_tokens,
            generation_requests=counts.num_generation_requests,
            generation_tokens=counts.num_generation_tokens,
            elapsed_ms=round(seconds * 1000, 3),
        )

    def forget_steps(self) -> None:
        """Forget the plans in flight and their requests: the worker is lost."""
        self._in_flight.clear()
        self._num_prompt_tokens.clear()
