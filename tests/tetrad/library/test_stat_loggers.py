"""The log line of an engine's load."""

from tetrad.library.stat_loggers import IterationStats, LoggingStatLogger, PrefixCacheStats, SchedulerStats


class Line:
    """A logger under a clock of its own, and what it wrote."""

    def __init__(self):
        self.now, self.written = 100.0, []
        self.logger = LoggingStatLogger(write=lambda event, **fields: self.written.append(fields), clock=lambda: self.now)

    def after(self, seconds, scheduler, iteration):
        self.now += seconds
        self.logger.record(scheduler, iteration)
        self.logger.log()


def test_it_has_throughput_requests_kv_use_and_hit_rate():
    line = Line()

    line.after(10, SchedulerStats(3, 1, 0.25, PrefixCacheStats(200, 50)), IterationStats(1000, 505))

    assert line.written == [
        {
            "engine": 0,
            "prompt_tokens_per_s": 100.0,
            "generation_tokens_per_s": 50.5,
            "running": 3,
            "waiting": 1,
            "kv_cache_usage_percent": 25.0,
            "prefix_cache_hit_rate_percent": 25.0,
        }
    ]


def test_it_comes_once_more_when_all_is_at_rest_and_then_no_more():
    line = Line()

    line.after(10, SchedulerStats(1), IterationStats(0, 10))
    line.after(10, SchedulerStats(), IterationStats())
    line.after(10, SchedulerStats(), IterationStats())

    assert [each["generation_tokens_per_s"] for each in line.written] == [1.0, 0.0]
