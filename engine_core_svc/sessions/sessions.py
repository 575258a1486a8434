"""Sessions: the requests of each frontend, and the streams that carry their outputs.

Owned by the engine, used on the event loop. A session's requests end with it. Knows request ids and outboxes; knows no tokens.
"""

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tetrad.engine_core_svc.core.plan import EngineCoreOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats
from tetrad.engine_core_svc.sessions.outbox import Message, Outbox, StepOutputs
from tetrad.services.errors import AlreadyExists

_STATS_INTERVAL_S = 0.1
"""Interval in seconds of load statistics to a session without outputs: frontends choose engine cores by them."""


@dataclass(slots=True, eq=False)
class Session:
    """The stream of one frontend.

    Attributes:
        key: the engine's own number for it.
        client_id: the frontend's name, for logs.
        outbox: messages still to be sent.
        request_keys: request id -> the engine's key, unfinished requests only.
        handles: handles in use.
        last_stats: the statistics sent last, and the time in monotonic seconds.
    """

    key: int
    client_id: str
    outbox: Outbox = field(default_factory=Outbox)
    request_keys: dict[str, int] = field(default_factory=dict)
    handles: set[int] = field(default_factory=set)
    last_stats: tuple[SchedulerStats | None, float] = field(default_factory=lambda: (None, time.monotonic()))

    def needs_stats(self, stats: SchedulerStats, now: float) -> bool:
        """Return whether to send statistics without outputs: 0.1 s after the last ones, or once the engine has become idle."""
        last, told_at = self.last_stats
        if stats.is_idle:
            return last is not None and not last.is_idle
        return now - told_at >= _STATS_INTERVAL_S

    def send(self, step: StepOutputs, stats: SchedulerStats, now: float) -> None:
        """Send outputs, if any, with statistics."""
        step.stats, self.last_stats = stats, (stats, now)
        self.outbox.put(step)

    def check_free(self, request_id: str, handle: int) -> None:
        """Raise AlreadyExists if an unfinished request has this id or this handle."""
        if request_id in self.request_keys:
            raise AlreadyExists(f"Request id {request_id} is in use.", field="request_id")
        if handle in self.handles:
            raise AlreadyExists(f"Handle {handle} is in use.", field="handle")


class Sessions:
    """All open sessions.

    Attributes:
        num_output_messages: number of messages with outputs.
        weight_version: name of the weights that compute the outputs of this time.
    """

    def __init__(self) -> None:
        self._keys = itertools.count(1)
        self._by_key: dict[int, Session] = {}
        self.num_output_messages = 0
        self.weight_version = ""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_key.values())

    def __contains__(self, session: Session) -> bool:
        """Return whether a session is open."""
        return session.key in self._by_key

    def open(self, client_id: str) -> Session:
        """Open and return a new session."""
        session = Session(next(self._keys), client_id)
        self._by_key[session.key] = session
        return session

    def of(self, request: Request) -> Session | None:
        """Return the session of a request; None if it is closed."""
        return self._by_key.get(request.session_key)

    def close(self, session: Session) -> list[int]:
        """Close a session; return the keys of its unfinished requests, which the caller must end."""
        self._by_key.pop(session.key, None)
        session.outbox.close()
        return list(session.request_keys.values())

    def add(self, request: Request) -> None:
        """Add an unfinished request to its session."""
        session = self._by_key[request.session_key]
        session.request_keys[request.request_id] = request.key
        session.handles.add(request.handle)

    def remove(self, requests: Iterable[Request]) -> None:
        """Remove ended requests from their sessions; requests of closed sessions are ignored."""
        for request in requests:
            session = self._by_key.get(request.session_key)
            if session is not None:
                session.request_keys.pop(request.request_id, None)
                session.handles.discard(request.handle)

    def publish(self, step_id: int, outputs: Iterable[EngineCoreOutput], stats: SchedulerStats) -> None:
        """Put one message into the outbox of each session that has outputs or needs statistics."""
        steps: dict[int, StepOutputs] = {}
        for output in outputs:
            key = output.request.session_key
            step = steps.get(key)
            if step is None:
                step = steps[key] = StepOutputs(step_id, weight_version=self.weight_version)
            step.outputs.append(output)
            if output.finish_reason is not None:
                self.remove([output.request])
        now = time.monotonic()
        for session in self:
            step = steps.get(session.key)
            if step is not None:
                session.send(step, stats, now)
                self.num_output_messages += 1
            elif session.needs_stats(stats, now):
                session.send(StepOutputs(step_id, weight_version=self.weight_version), stats, now)

    def broadcast(self, message: Message) -> None:
        """Put the same message into every outbox."""
        for session in self:
            session.outbox.put(message)
