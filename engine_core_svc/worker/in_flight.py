"""In flight: the plans and the media items that a worker has not answered yet; checks its answers against them.

Used by one executor, on the event loop. A result that does not belong to the oldest plan, or names requests that this plan
does not run, would corrupt the scheduler's state: the engine core closes the connection. So does an answer for an item that
was not asked for, which would corrupt the encoder cache; items and steps are independent. An error in the part of one request
(result_check.py) fails only that request. Knows keys, token ids and identifiers; knows no streams.
"""

from collections import deque
from collections.abc import Callable, Iterable

from tetrad.engine_core_svc.core.media import EncoderEvents
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput, SchedulerOutput
from tetrad.engine_core_svc.worker.result_check import ResultCheck
from tetrad.services.errors import InternalError, TetradError
from tetrad.services.log import get_logger
from tetrad.services.timers.running_time import Watchdog

log = get_logger()


class InFlight:
    """The unanswered plans in order, the oldest first.

    Args:
        vocab_size: size of the vocabulary; token ids are smaller.
    """

    def __init__(self, vocab_size: int) -> None:
        self._check = ResultCheck(vocab_size)
        self._plans: deque[SchedulerOutput] = deque()
        # Failed requests: plans made before the failure was known still name them; results may name them or not.
        self._failed: set[int] = set()

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, plan: SchedulerOutput) -> None:
        """Add a plan that is sent now."""
        self._plans.append(plan)

    def take(self, result: ModelRunnerOutput) -> None:
        """Remove the oldest plan, which this result must answer. Raises InternalError with reason WORKER_FAULT if it does not.

        If the part of one request is wrong, that request fails; only its failure stays in the result.
        """
        plan = self._plans.popleft() if self._plans else None
        if plan is None or result.step_id != plan.step_id:
            raise fault(f"it answered step {result.step_id}, but step {plan.step_id if plan else 'none'} was next")
        if strangers := _find_strangers(plan, result):
            raise fault(f"its result of step {plan.step_id} names requests {sorted(strangers)}, which the step does not have")
        # Done at the plan's result, not when it is sent: earlier plans still name the failed request.
        self._failed.difference_update(plan.removed_keys)
        self._check.note_plan(plan)
        for key, problem in self._check.find_problems(plan, result).items():
            if key not in self._failed and key not in result.failures:
                log.error("result.wrong", step_id=plan.step_id, key=key, problem=problem)
                result.failures[key] = request_fault(problem)
        self._failed |= result.failures.keys()
        if self._failed:
            result.drop(self._failed)


def _find_strangers(plan: SchedulerOutput, result: ModelRunnerOutput) -> set[int]:
    """Return the keys of requests that a result names and its plan does not. Usually it names those that sample."""
    named = {*result.failures, *result.logprobs, *result.prompt_logprobs, *result.prompt_scores, *result.pooling_outputs}
    if result.keys != plan.sampling_keys:
        named.update(result.keys)
    return named - plan.keys() if named else named


class Encodings:
    """The unanswered items of one worker, and the answers that were not taken yet.

    Args:
        timeout_s: maximum seconds without an answer while items are unanswered.
        give_up: called when that time has passed.
    """

    def __init__(self, timeout_s: float, give_up: Callable[[], None]) -> None:
        self._unanswered: set[str] = set()
        self._encoded: list[str] = []
        self._failures: dict[str, TetradError] = {}
        self._watchdog = Watchdog(timeout_s, give_up)

    def add(self, identifiers: Iterable[str]) -> None:
        """Add items that the worker is asked to encode now."""
        if not self._unanswered:
            self._watchdog.watch()
        self._unanswered.update(identifiers)

    def note(self, events: EncoderEvents) -> None:
        """Record a worker's answers. Raises InternalError with reason WORKER_FAULT for items that are not being encoded."""
        for identifier in (*events.encoded, *events.failures):
            if identifier not in self._unanswered:
                raise fault(f"it answered item {identifier!r}, which it was not to encode")
            self._unanswered.remove(identifier)
        self._encoded += events.encoded
        self._failures.update(events.failures)
        if self._unanswered:
            self._watchdog.watch()
        else:
            self._watchdog.rest()

    def take(self) -> EncoderEvents | None:
        """Return the answers since the last call; None if there are none."""
        if not (self._encoded or self._failures):
            return None
        events = EncoderEvents(self._encoded, self._failures)
        self._encoded, self._failures = [], {}
        return events

    def close(self) -> None:
        """Stop waiting for answers."""
        self._watchdog.close()


def request_fault(problem: str) -> InternalError:
    """Return the error of a request for which a worker's result is wrong."""
    return InternalError(f"The worker's result for this request was wrong: {problem}.", reason="WORKER_FAULT")


def fault(what: str) -> InternalError:
    """Return the error of a worker that violates the contract."""
    return InternalError(f"The worker does not keep to its contract: {what}.", reason="WORKER_FAULT")
