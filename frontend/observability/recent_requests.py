"""RecentRequests: durations and sizes of the last requests. Never their content.

Filled where a request ends (unfinished_requests.py); read by the console. Holds no text of prompts, answers or errors, since
other users read it.
"""

import itertools
import time
from collections import deque
from dataclasses import dataclass

from tetrad.frontend.request.request_state import RequestState
from tetrad.services.errors import TetradError


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """One request that ended. Times are wall clock in seconds, durations in seconds.

    Attributes:
        number: grows with each request of this frontend that ended.
        model: that ran it, by its first name; empty: the only one.
        adapter: the LoRA adapter it ran with; empty: none.
        queue_s: until it was scheduled first, tokenizing and the way to the engine core not included; None: it never was.
        prefill_s: from then to the first token; None: there is none.
        decode_s: from the first to the last token; None: there is none.
        finish_reasons: of its sequences, each reason once.
        error: reason of the error that ended it, as POISONOUS_REQUEST; empty: none did.
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
    """The last requests, oldest first.

    Args:
        size: most that are kept. 0: none.
    """

    def __init__(self, size: int) -> None:
        self._ended: deque[RecentRequest] = deque(maxlen=size)
        self._numbers = itertools.count(1)

    def note(self, request: RequestState, error: TetradError | None, model: str = "") -> None:
        """Take a request that ended, with `error` if that is why."""
        if self._ended.maxlen:
            self._ended.append(_recent(next(self._numbers), request, error, model))

    def after(self, number: int) -> list[RecentRequest]:
        """Return those that ended after the one of this number, as far as they are kept."""
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
