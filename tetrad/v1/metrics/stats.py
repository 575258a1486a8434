"""The types that stat loggers receive, under vLLM's import path."""

from tetrad.library.stat_loggers import IterationStats as IterationStats
from tetrad.library.stat_loggers import PrefixCacheStats as PrefixCacheStats
from tetrad.library.stat_loggers import SchedulerStats as SchedulerStats
