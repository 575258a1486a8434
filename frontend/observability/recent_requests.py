"""RecentRequests: keeps durations and sizes of the last requests, never their content.

Filled at the end of each request (unfinished_requests.py); read by the console. It has no text of prompts, answers or errors,
because other users read it.
"""

import itertools
import time
from collections import deque
from dataclasses import dataclass

from tetrad.frontend.request.request_state import RequestState
from tetrad.services.errors import TetradError


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """One finished request. Times are wall clock in seconds, durations in seconds.

    Attributes:
        number: number of the request in the order of ends in this frontend, increasing.
        model: first name of its model; empty: the only model.
        adapter: its LoRA adapter; empty: none.
        queue_s: time in the engine core until it was first scheduled; None: it never was.
        prefill_s: from then to the first token; None: there was no token.
        decode_s: from the first to the last token; None: there was no token.
        finish_reasons: the finish reasons of its sequences, each once.
        error: reason of the error that ended it, such as POISONOUS_REQUEST; empty: no error.
    """

    number: int
    request_id: str
    model: str
    adapter: str
    arrival_time: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generation_tokens: int
    num_preemptions: int
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    total_s: float
    finish_reasons: list[str]
    error: str


class RecentRequests:
    """The last finished requests, oldest first.

    Args:
        size: maximum number of requests to keep; 0: none.
    """

    def __init__(self, size: int) -> None:
        self._ended: deque[RecentRequest] = deque(maxlen=size)
        self._numbers = itertools.count(1)

    def note(self, request: RequestState, error: TetradError | None, model: str = "") -> None:
        """Add a finished request; `error` is the error that ended it, if any."""
        if self._ended.maxlen:
            self._ended.append(_recent(next(self._numbers), request, error, model))

    def after(self, number: int) -> list[RecentRequest]:
        """Return the kept requests with larger numbers than `number`."""
        newer = itertools.takewhile(lambda each: each.number > number, reversed(self._ended))
        return list(newer)[::-1]


def _recent(number: int, request: RequestState, error: TetradError | None, model: str) -> RecentRequest:
    metrics = request.metrics
    queue_s, prefill_s, decode_s = metrics.queued_time_s, None, None
    end = metrics.finished_time or metrics.last_token_time or time.time()
    if metrics.first_token_time is not None and metrics.last_token_time is not None:
        prefill_s = max(metrics.first_token_time - metrics.arrival_time - (queue_s or 0.0), 0.0)
        decode_s = max(metrics.last_token_time - metrics.first_token_time, 0.0)
    return RecentRequest(
        number=number,
        request_id=request.request_id,
        model=model,
        adapter="" if request.lora_request is None else request.lora_request.lora_name,
        arrival_time=metrics.arrival_time,
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens or 0,
        num_generation_tokens=metrics.num_generation_tokens,
        num_preemptions=metrics.num_preemptions,
        queue_s=queue_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        total_s=max(end - metrics.arrival_time, 0.0),
        finish_reasons=sorted({sequence.finish_reason or "abort" for sequence in request.sequences}),
        error="" if error is None else error.reason,
    )
