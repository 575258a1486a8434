"""Crash isolation: finds the request that crashes workers.

Called by the engine, on the event loop. A request that was in flight at two crashes of a worker, without 32 new tokens in
between, is a suspect and runs alone. It is cleared when it produces a few tokens or ends, and returned for failure when the
worker crashes again. If the crashed worker is another engine's, with experts of the model, a request of that engine may be the
cause: then a suspect is returned only if it ran alone at the crash before, too. A load of an adapter may be the cause, too:
suspects start when there is none, and a crash during a load fails no request; several fail the adapter (adapter_loading.py).
The engine decides which losses are crashes, and fails the request.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.adapter import Adapter
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler

NO_REQUEST = 0
"""A key that no request has."""
CRASHES_TO_SUSPECT = 2
CRASHES_TO_FAIL = 3
CRASHES_ELSEWHERE_TO_FAIL = 4
TOKENS_TO_FORGET = 32
"""Number of new tokens after a crash that clear a request. A request that crashes the worker does so again when it is
recomputed. Workers also crash for other reasons, and a long request is in flight at many such crashes."""


@dataclass(frozen=True, slots=True)
class _Record:
    num_crashes: int
    num_tokens: int  # tokens of the request at the last crash


class CrashIsolation:
    """Counts crashes by request, and runs suspects one after the other.

    Args:
        scheduler: owns the requests, and plans only the isolated one.
        tokens_to_clear: number of new tokens that clear a request which runs alone; more than can be in flight.
    """

    def __init__(self, scheduler: Scheduler, *, tokens_to_clear: int) -> None:
        self._scheduler = scheduler
        self._cleared_after = tokens_to_clear
        self._records: dict[int, _Record] = {}
        self._queue: deque[int] = deque()
        self._alone: int | None = None
        self._under_way: list[Request] = []
        self._loading: Sequence[Adapter] = ()

    def note_loss(self) -> None:
        """Remember the requests in flight and the loads on the lost worker; called before the scheduler forgets the worker."""
        self._under_way, self._loading = self._scheduler.states.in_flight, self._scheduler.adapters.loading

    def resolve_loss(self, *, crashed: bool, elsewhere: bool = False) -> list[Request]:
        """Count the last loss if it was a crash; return the requests that the caller must fail for it.

        Args:
            crashed: whether it was a crash.
            elsewhere: whether the worker was that of another engine.
        """
        under_way = [request for request in self._under_way if not request.is_finished]
        loading, self._under_way, self._loading = self._loading, [], ()
        if not crashed:
            return []
        for adapter in loading[:1]:  # the worker has not begun to load the others
            adapter.num_crashes += not elsewhere
        suspect_key = self._alone if self._is_suspect_running() and not loading else NO_REQUEST
        self._count_crash(under_way)
        most = CRASHES_ELSEWHERE_TO_FAIL if elsewhere else CRASHES_TO_FAIL
        to_fail = [each for each in under_way if each.key == suspect_key and self._records[each.key].num_crashes >= most]
        self._queue = deque(self._find_suspects())
        self._alone = NO_REQUEST
        return to_fail

    def choose(self, num_in_flight: int) -> None:
        """Let the scheduler plan only one suspect, or all requests again; return at once if there are no suspects.

        A suspect starts with nothing else in flight: a crash must have one possible cause.
        """
        if self._alone is None or self._is_suspect_running():
            return
        while self._queue and self._queue[0] not in self._scheduler.requests:
            self._queue.popleft()
        if not self._queue:
            self._alone = None
        elif num_in_flight or self._scheduler.adapters.loading:
            self._alone = NO_REQUEST
        else:
            self._alone = self._queue.popleft()
        self._scheduler.isolate(self._alone)

    def _is_suspect_running(self) -> bool:
        """Return whether the isolated request is still a suspect; clear it after enough tokens."""
        request = self._scheduler.requests.get(self._alone or NO_REQUEST)
        if request is not None and self._has_progressed(request, self._cleared_after):
            del self._records[request.key]
            return False
        return request is not None and request.key in self._records

    def _count_crash(self, requests: Iterable[Request]) -> None:
        unfinished = self._scheduler.requests
        self._records = {key: record for key, record in self._records.items() if key in unfinished}
        for request in requests:
            if self._has_progressed(request, TOKENS_TO_FORGET):
                self._records.pop(request.key, None)
            record = self._records.get(request.key)
            self._records[request.key] = _Record(1 + (record.num_crashes if record else 0), request.num_tokens)

    def _find_suspects(self) -> list[int]:
        """Return the keys of the suspects, in order of arrival."""
        return sorted(key for key, record in self._records.items() if record.num_crashes >= CRASHES_TO_SUSPECT)

    def _has_progressed(self, request: Request, num_tokens: int) -> bool:
        record = self._records.get(request.key)
        return record is not None and request.num_tokens - record.num_tokens >= num_tokens
