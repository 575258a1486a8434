"""Suspects: requests that may be to blame for a worker's death, and the one that has to prove itself alone.

Called by the engine, on the event loop. Whoever was in a plan in flight when a worker crashed gets a strike; progress since the
last one wipes them out. With two strikes a request is run alone: the next few tokens, or its end, acquit it; another crash
convicts it. Knows nothing of workers and errors: the engine says what was a crash, and ends whom this convicts.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler

NOBODY = 0
"""No request has this key."""
STRIKES_TO_SUSPECT = 2
FORGIVEN_AFTER_TOKENS = 32
"""What takes a worker down is there again when it is recomputed. Who came this far since is not it: workers also die of other
causes, and long requests live through many of these deaths."""


@dataclass(frozen=True, slots=True)
class _Record:
    strikes: int
    num_tokens: int  # the request's, at the last strike


class Suspects:
    """Strikes by request, and the order of trials.

    Args:
        scheduler: whose requests these are; told whom it may plan.
        acquitted_after: tokens that a request has to bring alone; more than can be in flight.
    """

    def __init__(self, scheduler: Scheduler, *, acquitted_after: int) -> None:
        self._scheduler = scheduler
        self._acquitted_after = acquitted_after
        self._records: dict[int, _Record] = {}
        self._queue: deque[int] = deque()
        self._alone: int | None = None
        self._under_way: list[Request] = []

    def note_loss(self) -> None:
        """Keep in mind who was under way on the worker that was lost; call it before the scheduler forgets the worker."""
        self._under_way = self._scheduler.states.in_flight

    def judge(self, *, crashed: bool) -> list[Request]:
        """Say whether the last loss was a crash; return the requests that it convicts, which the caller ends."""
        under_way = [request for request in self._under_way if not request.is_finished]
        self._under_way = []
        if not crashed:
            return []
        on_trial = self._alone if self._is_on_trial() else NOBODY
        self._strike(under_way)
        convicted = [request for request in under_way if request.key == on_trial]
        self._queue = deque(self._find_suspects())
        self._alone = NOBODY
        return convicted

    def choose(self, num_in_flight: int) -> None:
        """Tell the scheduler whom it may plan next; costs nothing while nobody is suspected.

        Trials begin with nothing else in flight: a crash must have one possible cause.
        """
        if self._alone is None or self._is_on_trial():
            return
        while self._queue and self._queue[0] not in self._scheduler.requests:
            self._queue.popleft()
        if not self._queue:
            self._alone = None
        elif num_in_flight:
            self._alone = NOBODY
        else:
            self._alone = self._queue.popleft()
        self._scheduler.isolate(self._alone)

    def _is_on_trial(self) -> bool:
        """Return whether the request that runs alone still has to; one that came on is acquitted here."""
        request = self._scheduler.requests.get(self._alone or NOBODY)
        if request is not None and self._came_on(request, self._acquitted_after):
            del self._records[request.key]
            return False
        return request is not None and request.key in self._records

    def _strike(self, requests: Iterable[Request]) -> None:
        unfinished = self._scheduler.requests
        self._records = {key: record for key, record in self._records.items() if key in unfinished}
        for request in requests:
            if self._came_on(request, FORGIVEN_AFTER_TOKENS):
                self._records.pop(request.key, None)
            record = self._records.get(request.key)
            self._records[request.key] = _Record(1 + (record.strikes if record else 0), request.num_tokens)

    def _find_suspects(self) -> list[int]:
        """Return the keys of the suspects, in order of arrival."""
        return sorted(key for key, record in self._records.items() if record.strikes >= STRIKES_TO_SUSPECT)

    def _came_on(self, request: Request, num_tokens: int) -> bool:
        record = self._records.get(request.key)
        return record is not None and request.num_tokens - record.num_tokens >= num_tokens
