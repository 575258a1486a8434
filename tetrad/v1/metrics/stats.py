"""What stat loggers are told, where programs made for vLLM import them from."""

from tetrad.stat_loggers import IterationStats as IterationStats
from tetrad.stat_loggers import PrefixCacheStats as PrefixCacheStats
from tetrad.stat_loggers import SchedulerStats as SchedulerStats
