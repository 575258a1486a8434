"""Stopping: decides whether the last token ends its request, in the order of vLLM's check_stop.

The worker masks EOS and stop ids until min_tokens; the frontend finds stop strings.
"""

from collections.abc import Sequence

from tetrad.engine_core_svc.core.request import RepetitionRule, Request, RequestStatus

REPETITION_DETECTED = "repetition_detected"
Verdict = tuple[RequestStatus, int | str | None]


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
