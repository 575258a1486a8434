"""EngineLoad: estimates how busy an engine is from its last report and the requests sent since. Owned by its engine client."""

from collections.abc import Sequence

from tetrad.frontend.request.steps import SchedulerFacts


class EngineLoad:
    """The load of one engine.

    Attributes:
        kv_cache_usage: share of its KV blocks in use, 0 to 1.
        running_loras: names of the adapters of its running requests, the first 32.
    """

    def __init__(self) -> None:
        self.kv_cache_usage = 0.0
        self.running_loras: Sequence[str] = ()
        self._num_reported = 0
        self._num_sent_since = 0

    def note_sent(self) -> None:
        """Note that the engine gets a request."""
        self._num_sent_since += 1

    def note_report(self, facts: SchedulerFacts) -> None:
        """Take what the engine says of itself, all frontends' requests included."""
        self._num_reported = facts.num_running + facts.num_waiting
        self._num_sent_since = 0
        self.kv_cache_usage, self.running_loras = facts.kv_cache_usage, facts.running_loras

    def note_lost(self) -> None:
        """Forget what the engine said: it is not there."""
        self._num_reported = self._num_sent_since = 0
        self.kv_cache_usage, self.running_loras = 0.0, ()

    def num_requests(self, num_own: int) -> int:
        """Return the engine's number of requests, of which at least `num_own` are this frontend's.

        A report may have crossed a request on its way; it is counted by then among this frontend's own.
        """
        return max(num_own, self._num_reported + self._num_sent_since)
