"""The types that `LLM.get_metrics` returns, under vLLM's import path."""

from tetrad.library.metrics_reader import Counter as Counter
from tetrad.library.metrics_reader import Gauge as Gauge
from tetrad.library.metrics_reader import Histogram as Histogram
from tetrad.library.metrics_reader import Metric as Metric
from tetrad.library.metrics_reader import Vector as Vector
