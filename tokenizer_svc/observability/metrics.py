"""TokenizerMetrics: the metrics of a tokenizer. The gRPC server counts and times its calls (services/rpc/interceptors.py).

Encoding runs in threads, so it is counted with prometheus_client's own histograms, which have locks; Detokenize messages are
processed on the event loop only.
"""

import contextlib
from collections.abc import Iterator

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tetrad.services.observability.histogram import Histogram
from tetrad.services.observability.metrics import REQUESTS_OF_A_STEP, SECONDS_OF_A_STEP, TOKENS
from tetrad.tokenizer_svc.tokenizer.detokenize_stream import DetokenizeStream


class TokenizerMetrics:
    """The metrics of one tokenizer, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "tetrad:tokenizer"
        self._encode = prometheus_client.Histogram(
            f"{prefix}_encode_seconds", "Duration of encoding a text.", buckets=SECONDS_OF_A_STEP, registry=self.registry
        )
        self._encoded = prometheus_client.Histogram(
            f"{prefix}_encoded_tokens", "Tokens of a text.", buckets=TOKENS, registry=self.registry
        )
        self.render = prometheus_client.Histogram(
            f"{prefix}_render_seconds",
            "Duration of rendering a conversation.",
            buckets=SECONDS_OF_A_STEP,
            registry=self.registry,
        )
        self._detokenize = Histogram(
            f"{prefix}_detokenize_seconds",
            "Duration of processing a Detokenize message.",
            SECONDS_OF_A_STEP,
            registry=self.registry,
        )
        self._batch = Histogram(
            f"{prefix}_detokenize_batch", "Sequences in a Detokenize message.", REQUESTS_OF_A_STEP, registry=self.registry
        )
        self._media = Histogram(
            f"{prefix}_media_seconds",
            "Duration of preprocessing an image, audio or video that is not in the cache, waiting included.",
            SECONDS_OF_A_STEP,
            registry=self.registry,
        )
        self._num_lookups = self._num_hits = 0
        self._num_tokens = 0
        self._streams: set[DetokenizeStream] = set()
        self.registry.register(self)

    def observe_encoded(self, seconds: float, num_tokens: int) -> None:
        """Count an encoded text; from any thread."""
        self._encode.observe(seconds)
        self._encoded.observe(num_tokens)

    @contextlib.contextmanager
    def stream(self, stream: DetokenizeStream) -> Iterator[None]:
        """Count a Detokenize stream as open while the context is open."""
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)

    def observe_message(self, seconds: float, num_sequences: int, num_tokens: int) -> None:
        """Count a Detokenize message with tokens."""
        self._detokenize.observe(seconds)
        self._batch.observe(num_sequences)
        self._num_tokens += num_tokens

    def observe_item(self, seconds: float) -> None:
        """Count a preprocessed item."""
        self._media.observe(seconds)

    def count_lookup(self, *, is_hit: bool) -> None:
        """Count a lookup in the cache of preprocessed items."""
        self._num_lookups += 1
        self._num_hits += is_hit

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are computed at a scrape."""
        prefix, streams = "tetrad:tokenizer", list(self._streams)
        yield GaugeMetricFamily(
            f"{prefix}_detokenize_streams", "Open Detokenize streams, one per frontend.", value=len(streams)
        )
        num_open = sum(stream.num_open for stream in streams)
        yield GaugeMetricFamily(f"{prefix}_detokenize_handles", "Open sequences of all Detokenize streams.", value=num_open)
        yield CounterMetricFamily(
            f"{prefix}_media_cache_queries", "Media looked up in the cache of preprocessed ones.", value=self._num_lookups
        )
        yield CounterMetricFamily(f"{prefix}_media_cache_hits", "Media found in this cache.", value=self._num_hits)
        yield CounterMetricFamily(f"{prefix}_detokenized_tokens", "Tokens converted to text.", value=self._num_tokens)
