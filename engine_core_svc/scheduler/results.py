"""Results: applies the result of a step to its unfinished requests.

Called by the scheduler, once for each result, in the order of the plans. Knows nothing of how plans are made. The outputs of a
request depend on its purpose, which the engine chose when it admitted the request: generation and pooling are two strategies.
The scheduler plans all requests alike: a pooling request is planned like a request with a single output token, and the step of
its last prompt chunk returns a vector instead.

A token ends its request in the order of vLLM's check_stop. The worker masks EOS and stop ids until min_tokens; the frontend
finds stop strings.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from tetrad.engine_core_svc.core.plan import FINISH_REASONS, EngineCoreOutput, ModelRunnerOutput, PrefillStats
from tetrad.engine_core_svc.core.request import Purpose, RepetitionRule, Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.drafting import Drafting
from tetrad.engine_core_svc.scheduler.request_states import RequestStates
from tetrad.engine_core_svc.structured_output.grammars import Grammars
from tetrad.services.errors import InternalError

REPETITION_DETECTED = "repetition_detected"
Verdict = tuple[RequestStatus, int | str | None]


class Strategy(Protocol):
    """Applies a result to one request."""

    def apply(self, request: Request, token_ids: Iterable[int], result: ModelRunnerOutput) -> EngineCoreOutput:
        """Apply the tokens, or other values that the result has for the request; return its output."""


class Generation:
    """Applies sampled tokens; a stop rule ends the request.

    Args:
        states: where requests end.
    """

    def __init__(self, states: RequestStates) -> None:
        self._states = states

    def apply(self, request: Request, token_ids: Iterable[int], result: ModelRunnerOutput) -> EngineCoreOutput:
        """Append sampled tokens one by one; drop the tokens after a stop."""
        request.num_placeholders -= 1
        logprobs, prompt_logprobs = result.logprobs.get(request.key), result.prompt_logprobs.get(request.key)
        output = EngineCoreOutput(request, [], logprobs=logprobs, prompt_logprobs=prompt_logprobs)
        output.prompt_scores = result.prompt_scores.get(request.key)
        if not request.first_output_sent:
            request.first_output_sent = True
            output.prefill_stats = _prefill_stats(request)
        for token_id in token_ids:
            request.token_ids.append(token_id)
            output.new_token_ids.append(token_id)
            verdict = check_stop(request)
            if verdict is not None:
                status, output.stop_reason = verdict
                self._states.finish(request, status)
                output.finish_reason = FINISH_REASONS[status]
                output.logprobs = logprobs and logprobs.first(len(output.new_token_ids))
                break
        return output


class Pooling:
    """Applies the vector of the step that computes the end of the prompt, and ends the request.

    Args:
        states: where requests end.
    """

    def __init__(self, states: RequestStates) -> None:
        self._states = states

    def apply(self, request: Request, token_ids: Iterable[int], result: ModelRunnerOutput) -> EngineCoreOutput:  # noqa: ARG002 - of the protocol
        """End the request with its vector; without a vector it ends with an error."""
        vector = result.pooling_outputs.get(request.key)
        status = RequestStatus.FINISHED_ERROR if vector is None else RequestStatus.FINISHED_STOPPED
        self._states.finish(request, status)
        error = InternalError("The worker's result has no vector for this request.") if vector is None else None
        return EngineCoreOutput(
            request, [], FINISH_REASONS[status], prefill_stats=_prefill_stats(request), pooling_output=vector, error=error
        )


def strategies(states: RequestStates) -> tuple[Strategy, ...]:
    """Return the strategy of each purpose, indexed by the purpose's number."""
    made: dict[Purpose, Strategy] = {Purpose.GENERATION: Generation(states), Purpose.POOLING: Pooling(states)}
    return tuple(made[purpose] for purpose in Purpose)


def _prefill_stats(request: Request) -> PrefillStats:
    num_external = min(request.num_fetched_tokens, request.num_cached_tokens)
    return PrefillStats(request.num_prompt_tokens, request.num_cached_tokens, num_external)


def check_stop(request: Request) -> Verdict | None:
    """Return (final status, stop reason) if the request's last token ends it, else None. EOS has no stop reason."""
    stop, last = request.stop, request.token_ids[-1]
    if last == stop.eos_token_id:
        return RequestStatus.FINISHED_STOPPED, None
    if last in stop.stop_token_ids:
        return RequestStatus.FINISHED_STOPPED, last
    if request.num_tokens >= request.max_total_tokens:
        return RequestStatus.FINISHED_LENGTH_CAPPED, None
    if stop.repetition is None or request.num_output_tokens < stop.min_tokens:
        return None
    if repeats(request.token_ids, stop.repetition, start=request.num_prompt_tokens):
        return RequestStatus.FINISHED_REPETITION, REPETITION_DETECTED
    return None


def repeats(token_ids: Sequence[int], rule: RepetitionRule, *, start: int = 0) -> bool:
    """Return whether the tokens from `start` on end in `min_count` copies of one pattern of an allowed size."""
    end = len(token_ids)
    for size in range(max(rule.min_pattern_size, 1), rule.max_pattern_size + 1):
        if size * rule.min_count > end - start:
            return False
        # Compare from the end, without copies: this runs for each token, and the first comparison excludes nearly every size.
        first = end - size * (rule.min_count - 1)
        if all(token_ids[i] == token_ids[i - size] for i in range(end - 1, first - 1, -1)):
            return True
    return False


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
