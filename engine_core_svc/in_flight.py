"""In flight: the plans that a worker has and has not answered, and whether its answers fit them.

Used by one executor. A worker is a peer that may be broken: an answer that does not fit would corrupt the scheduler's books or
leave a request waiting for ever, so it costs the worker its connection instead. Knows keys and token ids; no streams.
"""

from collections import deque
from itertools import chain

from tetrad.engine_core_svc.scheduler.output import ModelRunnerOutput, SchedulerOutput
from tetrad.services.errors import InternalError


class InFlight:
    """Plans in order, the oldest first.

    Args:
        vocab_size: token ids are smaller.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._plans: deque[SchedulerOutput] = deque()
        # Requests that the worker has failed: plans made before that was known name them in vain.
        self._failed: set[int] = set()

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, plan: SchedulerOutput) -> None:
        """Note a plan that is sent."""
        self._plans.append(plan)

    def take(self, result: ModelRunnerOutput) -> None:
        """Strike off the oldest plan, which this result must answer; InternalError, reason WORKER_FAULT, if it does not."""
        plan = self._plans.popleft() if self._plans else None
        if plan is None or result.step_id != plan.step_id:
            raise fault(f"it answered step {result.step_id}, but step {plan.step_id if plan else 'none'} was next")
        brought, failed = set(result.keys), result.failures.keys()
        if len(brought) != len(result.keys):
            raise fault(f"its result of step {plan.step_id} names a request twice")
        if failed - plan.num_scheduled_tokens().keys() if failed else ():
            raise fault(f"it failed requests {sorted(failed)} in step {plan.step_id}, which does not have all of them")
        # Not when that plan is sent: those before it still name the request in vain.
        self._failed.difference_update(plan.removed_keys)
        self._failed |= failed
        if brought != set(plan.sampling_keys) - self._failed:
            wanted = sorted(set(plan.sampling_keys) - self._failed)
            raise fault(f"step {plan.step_id} was to bring tokens of requests {wanted}, but brought {sorted(brought)}")
        if any(len(row) != 1 for row in result.token_ids):
            raise fault(f"step {plan.step_id} brought other than one token for a request, and nothing was speculated")
        largest = max(chain.from_iterable(result.token_ids), default=0)
        if largest >= self._vocab_size:
            raise fault(f"step {plan.step_id} brought token {largest}; the vocabulary has {self._vocab_size}")
        if not result.logprobs.keys() <= brought or not result.prompt_logprobs.keys() <= plan.num_scheduled_tokens().keys():
            raise fault(f"step {plan.step_id} brought log-probabilities of requests that it did not run")


def fault(what: str) -> InternalError:
    """Return the error of a worker that does not keep to the contract."""
    return InternalError(f"The worker does not keep to its contract: {what}.", reason="WORKER_FAULT")
