"""Stat loggers, under vLLM's import path."""

from tetrad.library.stat_loggers import LoggingStatLogger as LoggingStatLogger
from tetrad.library.stat_loggers import StatLoggerBase as StatLoggerBase
from tetrad.library.stat_loggers import StatLoggerFactory as StatLoggerFactory
