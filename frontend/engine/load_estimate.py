"""LoadEstimate: estimates an engine core's load from its last report and the requests sent since. Owned by its client.

An engine core does not report requests that end before their first step: it was idle before and is idle again.
"""

from collections.abc import Sequence

from tetrad.frontend.request.steps import SchedulerFacts


class LoadEstimate:
    """The estimated load of one engine core.

    Attributes:
        kv_cache_usage: share of KV blocks in use, 0 to 1.
        running_loras: names of the first 32 adapters of running requests.
        num_expected: number of requests that are to follow: another engine core computes their prompts now.
    """

    def __init__(self) -> None:
        self.kv_cache_usage = 0.0
        self.running_loras: Sequence[str] = ()
        self.num_expected = 0
        self._num_reported = 0
        self._sent_since: set[str] = set()

    def note_sent(self, request_id: str) -> None:
        """Count a request that is sent to the engine core."""
        self._sent_since.add(request_id)

    def note_ended(self, request_id: str) -> None:
        """Count a request no more that has ended, was refused, or continues on another engine core."""
        self._sent_since.discard(request_id)

    def note_report(self, facts: SchedulerFacts) -> None:
        """Store the engine core's report, which includes the requests of all frontends."""
        self._num_reported = facts.num_running + facts.num_waiting
        self._sent_since.clear()
        self.kv_cache_usage, self.running_loras = facts.kv_cache_usage, facts.running_loras

    def note_lost(self) -> None:
        """Reset the load: the engine core is lost."""
        self._num_reported = 0
        self._sent_since.clear()
        self.kv_cache_usage, self.running_loras = 0.0, ()

    def num_requests(self, num_own: int) -> int:
        """Return the engine core's number of requests, of which at least `num_own` are this frontend's.

        A report may be older than a request that was just sent; `num_own` includes such a request.
        """
        return max(num_own, self._num_reported + len(self._sent_since)) + self.num_expected
