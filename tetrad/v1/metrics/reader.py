"""What `LLM.get_metrics` returns, where programs made for vLLM import them from."""

from tetrad.metrics_reader import Counter as Counter
from tetrad.metrics_reader import Gauge as Gauge
from tetrad.metrics_reader import Histogram as Histogram
from tetrad.metrics_reader import Metric as Metric
from tetrad.metrics_reader import Vector as Vector
