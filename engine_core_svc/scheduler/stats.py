"""Stats: counts of the scheduler, for sessions, operators and Prometheus. Taken once per step, never per token."""

from collections.abc import Sequence
from typing import NamedTuple

from tetrad.engine_core_svc.scheduler.scheduler import Scheduler


class SchedulerStats(NamedTuple):
    """The fields of vLLM's SchedulerStats that apply; counters are since start, in tokens or requests. See also DraftStats."""

    num_running_reqs: int
    num_waiting_reqs: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    step_counter: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    running_loras: Sequence[str] = ()
    waiting_loras: Sequence[str] = ()
    num_accepted_by_place: Sequence[int] = ()
    encoder_cache_usage: float = 0.0
    mm_cache_queries: int = 0
    mm_cache_hits: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether there are no requests and no blocks in use."""
        return not (self.num_running_reqs or self.num_waiting_reqs or self.kv_cache_usage)


def take_stats(scheduler: Scheduler) -> SchedulerStats:
    """Return the scheduler's present counts."""
    drafts = scheduler.drafting.stats
    return SchedulerStats(
        num_running_reqs=len(scheduler.running),
        num_waiting_reqs=scheduler.states.num_waiting,
        kv_cache_usage=scheduler.kv_cache.pool.usage,
        prefix_cache_queries=scheduler.kv_cache.stats.queries,
        prefix_cache_hits=scheduler.kv_cache.stats.hits,
        num_preemptions=scheduler.states.num_preemptions,
        step_counter=scheduler.step_counter,
        num_drafts=drafts.num_drafts,
        num_draft_tokens=drafts.num_draft_tokens,
        num_accepted_tokens=drafts.num_accepted_tokens,
        running_loras=scheduler.adapters.running_names,
        waiting_loras=scheduler.adapters.waiting_names,
        num_accepted_by_place=tuple(drafts.num_accepted_by_place),
        encoder_cache_usage=scheduler.media.usage,
        mm_cache_queries=scheduler.media.stats.queries,
        mm_cache_hits=scheduler.media.stats.hits,
    )
