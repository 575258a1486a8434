"""The types that `LLM.get_metrics` returns, under vLLM's import path."""

from tetrad.metrics_reader import Counter as Counter
from tetrad.metrics_reader import Gauge as Gauge
from tetrad.metrics_reader import Histogram as Histogram
from tetrad.metrics_reader import Metric as Metric
from tetrad.metrics_reader import Vector as Vector
