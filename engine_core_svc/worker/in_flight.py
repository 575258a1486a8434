"""In flight: the plans that a worker has not answered yet; checks its results against them.

Used by one executor. A result that does not belong to the oldest plan, or names requests that this plan does not run, would
corrupt the scheduler's state: the engine core closes the connection. An error in the part of one request (result_check.py)
fails only that request. Knows keys and token ids; knows no streams.
"""

from collections import deque

from tetrad.engine_core_svc.core.plan import ModelRunnerOutput, SchedulerOutput
from tetrad.engine_core_svc.worker.result_check import ResultCheck
from tetrad.services.errors import InternalError
from tetrad.services.log import get_logger

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


def request_fault(problem: str) -> InternalError:
    """Return the error of a request for which a worker's result is wrong."""
    return InternalError(f"The worker's result for this request was wrong: {problem}.", reason="WORKER_FAULT")


def fault(what: str) -> InternalError:
    """Return the error of a worker that violates the contract."""
    return InternalError(f"The worker does not keep to its contract: {what}.", reason="WORKER_FAULT")
