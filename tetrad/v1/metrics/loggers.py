"""Stat loggers, where programs made for vLLM import them from."""

from tetrad.stat_loggers import LoggingStatLogger as LoggingStatLogger
from tetrad.stat_loggers import StatLoggerBase as StatLoggerBase
from tetrad.stat_loggers import StatLoggerFactory as StatLoggerFactory
