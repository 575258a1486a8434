"""Results: applies the result of a step to its unfinished requests.

Called by the scheduler, once for each result, in the order of the plans. The outputs of a request depend on its purpose:
generation or pooling (purposes.py). Knows nothing of how plans are made.
"""

from tetrad.engine_core_svc.core.plan import FINISH_REASONS, EngineCoreOutput, ModelRunnerOutput
from tetrad.engine_core_svc.core.request import RequestStatus
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.drafting import Drafting
from tetrad.engine_core_svc.scheduler.purposes import strategies
from tetrad.engine_core_svc.scheduler.request_states import RequestStates
from tetrad.engine_core_svc.structured_output.grammars import Grammars


class Results:
    """Applies results to requests.

    Args:
        states: all unfinished requests.
        kv_cache: their block tables.
        grammars: grammars of the constrained requests.
        drafting: drafts of all requests.
    """

    def __init__(self, states: RequestStates, kv_cache: KVCacheManager, grammars: Grammars, drafting: Drafting) -> None:
        self._states, self._kv_cache, self._grammars, self._drafting = states, kv_cache, grammars, drafting
        self._strategies = strategies(states)

    def apply(self, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Apply one step's result; return the outputs."""
        outputs: list[EngineCoreOutput] = []
        requests = self._states.requests
        if result.failures:
            self._recompute_misled(result)
        self._grammars.refuse_misfits(result)
        self._drafting.settle(result)
        for key, token_ids in zip(result.keys, result.token_ids, strict=True):
            request = requests.get(key)
            # Otherwise the request ended while the step ran, or is computed again.
            if request is not None and not request.ignores(result.step_id):
                outputs.append(self._strategies[request.purpose].apply(request, token_ids, result))
        self._drafting.propose(outputs, result)
        self._grammars.advance(result.step_id, outputs)
        for key, error in result.failures.items():
            if (request := requests.get(key)) is not None:
                self._states.finish(request, RequestStatus.FINISHED_ERROR)
                outputs.append(EngineCoreOutput(request, [], FINISH_REASONS[request.status], error=error))
        self._states.deferred_frees.note_returned(result.step_id)
        self._kv_cache.note_returned(result.step_id)
        return outputs

    def _recompute_misled(self, result: ModelRunnerOutput) -> None:
        """Put requests back in the queue, as if they had not run, if they shared blocks that a failed request has not written.

        The unwritten blocks may have made them fail: their failures are removed from this result and from those of later steps.
        """
        failures, requests = result.failures, self._states.requests
        for request in [request for key in failures if (request := requests.get(key)) is not None]:
            if request.ignores(result.step_id):
                del failures[request.key]
        for key in self._kv_cache.forget_pending(failures.keys()):
            failures.pop(key, None)
            request = requests.get(key)
            if request is None:
                continue
            if request.status is RequestStatus.RUNNING:
                self._states.preempt(request)
            request.num_placeholders, request.ignored_until = 0, request.last_step_id
            request.num_cached_tokens = -1  # what it found was not there
