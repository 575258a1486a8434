"""Panels: the rows, panels and queries of the Grafana dashboard. dashboard.py makes Grafana's JSON of them.

Means are sums by counts, so that parts of a whole add up. $__rate_interval is Grafana's: long enough for a rate at the zoom.
Queries for faults end in `or vector(0)`: without a fault they draw a line at 0 instead of an empty panel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_WINDOW = "[$__rate_interval]"
_NONE = " or vector(0)"


@dataclass(frozen=True)
class Query:
    """One or more lines of a panel; `legend` may name labels: {{job}}."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One chart. `unit` is Grafana's name: s, reqps, percentunit, bytes, short."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    stacked: bool = False
    about: str = ""
    width: int = 8


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


def rate(metric: str, *labels: str) -> str:
    """Return a query for how much a counter grows in a second, summed but for `labels`."""
    return f"sum{_by(labels)}(rate({metric}{_WINDOW}))"


def mean(histogram: str) -> str:
    """Return a query for the mean of what a histogram observes."""
    return f"{rate(f'{histogram}_sum')} / {rate(f'{histogram}_count')}"


def quantile(share: float, histogram: str, *labels: str) -> str:
    """Return a query for a quantile of what a histogram observes."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', 'le', *labels)})"


def quantiles(histogram: str, *shares: float) -> list[Query]:
    """Return a query a quantile."""
    return [Query(quantile(share, histogram), f"p{100 * share:g}") for share in shares]


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)}) " if labels else ""


_STAGES = ("intake", "hop", "queue", "prefill", "detokenize", "decode")
_ROUND_TRIP = mean("tetrad:engine_worker_round_trip_seconds")
_WORKER_QUEUE, _COMPUTE = mean("tetrad:worker_step_queue_seconds"), mean("tetrad:worker_step_compute_seconds")
_DETOKENIZE_TRIP, _DETOKENIZE = mean("tetrad:detokenize_round_trip_seconds"), mean("tetrad:tokenizer_detokenize_seconds")

OVERVIEW = Row(
    "Overview",
    (
        Panel(
            "Requests ended", [Query(rate("tetrad:request_success_total", "finished_reason"), "{{finished_reason}}")], "reqps"
        ),
        Panel(
            "Tokens a second",
            [
                Query(rate("tetrad:generation_tokens_total"), "generated"),
                Query(rate("tetrad:prompt_tokens_total"), "prompt"),
                Query(rate("tetrad:prompt_tokens_cached_total"), "of that from the prefix cache"),
            ],
        ),
        Panel(
            "Requests in the engine cores",
            [
                Query("sum(tetrad:engine_requests_running)", "running"),
                Query("sum by (reason) (tetrad:engine_requests_waiting)", "waiting for {{reason}}"),
            ],
        ),
        Panel("Time to first token", quantiles("tetrad:time_to_first_token_seconds", 0.5, 0.95, 0.99), "s"),
        Panel("Time between tokens", quantiles("tetrad:inter_token_latency_seconds", 0.5, 0.95, 0.99), "s"),
        Panel("Time of a request", quantiles("tetrad:e2e_request_latency_seconds", 0.5, 0.95, 0.99), "s"),
        Panel(
            "HTTP requests by status", [Query(rate("tetrad:http_requests_total", "status"), "{{status}}")], "reqps", width=12
        ),
        Panel(
            "HTTP, 95% are faster, by route",
            [Query(quantile(0.95, "tetrad:http_request_duration_seconds", "handler"), "{{handler}}")],
            "s",
            width=12,
        ),
    ),
)

REQUEST_TIME = Row(
    "Where a request's time goes",
    (
        Panel(
            "Mean time of a request, by stage",
            [Query(mean(f"tetrad:request_{stage}_time_seconds"), stage) for stage in _STAGES],
            "s",
            stacked=True,
            about="The stages follow each other and add up to the time of a request. Intake: checks and tokenization. Hop: to "
            "the engine core and back with the first token. Detokenize: first token to text.",
            width=12,
        ),
        Panel(
            "95% are faster, by stage",
            [Query(quantile(0.95, f"tetrad:request_{stage}_time_seconds"), stage) for stage in _STAGES],
            "s",
            width=12,
        ),
        Panel(
            "Mean time of a tokenizer's call",
            [
                Query(f"{rate('tetrad:tokenizer_round_trip_seconds_sum', 'method')} / "
                      f"{rate('tetrad:tokenizer_round_trip_seconds_count', 'method')}", "{{method}}, as the frontend sees it"),
                Query(mean("tetrad:tokenizer_encode_seconds"), "encoding a text"),
                Query(mean("tetrad:tokenizer_render_seconds") + _NONE, "rendering a conversation"),
            ],
            "s",
        ),
        Panel("Mean tokens of a request", [
            Query(mean("tetrad:request_prompt_tokens"), "prompt"),
            Query(mean("tetrad:request_prefill_kv_computed_tokens"), "of that computed"),
            Query(mean("tetrad:request_generation_tokens"), "generated"),
        ]),
        Panel("Requests that a frontend holds", [
            Query("sum by (instance) (tetrad:requests_unfinished)", "{{instance}} unfinished"),
            Query("sum by (instance) (tetrad:prompt_tokens_queued)", "{{instance}} prompt tokens that wait"),
        ]),
    ),
)  # fmt: skip

STEP_TIME = Row(
    "Where a step's time goes",
    (
        Panel(
            "Mean time of a step's parts",
            [
                Query(mean("tetrad:engine_schedule_seconds"), "schedule"),
                Query(f"{_ROUND_TRIP} - {_WORKER_QUEUE} - {_COMPUTE}", "hop to the worker and back"),
                Query(_WORKER_QUEUE, "wait for the device"),
                Query(_COMPUTE, "compute"),
                Query(mean("tetrad:engine_update_seconds"), "update"),
                Query(f"{_DETOKENIZE_TRIP} - {_DETOKENIZE}", "hop to the tokenizer and back"),
                Query(_DETOKENIZE, "detokenize"),
            ],
            "s",
            stacked=True,
            about="Steps overlap: the next one waits for the device while this one is computed. What a step costs its readers "
            "is the time between steps, not this sum.",
            width=12,
        ),
        Panel("Time between steps", quantiles("tetrad:engine_step_seconds", 0.5, 0.95, 0.99), "s", width=12),
        Panel("Mean size of a step", [
            Query(mean("tetrad:engine_step_tokens"), "tokens"),
            Query(mean("tetrad:engine_step_requests"), "requests"),
        ]),
        Panel("On the device", [
            *quantiles("tetrad:worker_step_compute_seconds", 0.5, 0.99),
            Query(mean("tetrad:worker_step_input_seconds"), "mean time of building inputs"),
        ], "s"),
        Panel("Planning and applying, 99% are faster", [
            Query(quantile(0.99, "tetrad:engine_schedule_seconds"), "schedule"),
            Query(quantile(0.99, "tetrad:engine_update_seconds"), "update"),
            Query(quantile(0.99, "tetrad:tokenizer_detokenize_seconds"), "detokenize"),
        ], "s"),
    ),
)  # fmt: skip

SCHEDULER = Row(
    "Scheduler",
    (
        Panel("Running, by engine core", [Query("sum by (instance) (tetrad:engine_requests_running)", "{{instance}}")]),
        Panel("Waiting, by engine core", [
            Query("sum by (instance, reason) (tetrad:engine_requests_waiting)", "{{instance}} for {{reason}}")
        ]),
        Panel("Tokens that wait, by engine core", [Query("sum by (instance) (tetrad:engine_tokens_waiting)", "{{instance}}")]),
        Panel("Steps and messages a second", [
            Query(rate("tetrad:engine_steps_total"), "steps"),
            Query(rate("tetrad:engine_output_messages_total"), "messages to frontends"),
        ]),
        Panel("Preemptions a second", [Query(rate("tetrad:engine_preemptions_total"), "preemptions")]),
        Panel("Compilation of a grammar", [
            Query(quantile(0.5, "tetrad:engine_grammar_compile_seconds"), "p50"),
            Query(quantile(0.95, "tetrad:engine_grammar_compile_seconds"), "p95"),
        ], "s"),
    ),
)  # fmt: skip

KV_CACHE = Row(
    "KV cache",
    (
        Panel("Blocks in use", [Query("max by (instance) (tetrad:engine_kv_usage)", "{{instance}}")], "percentunit"),
        Panel("Prompt tokens found in the prefix cache", [
            Query(f"{rate('tetrad:engine_prefix_cache_hits_total')} / {rate('tetrad:engine_prefix_cache_queries_total')}",
                  "share")
        ], "percentunit"),
        Panel("Blocks of the prefix cache a second", [
            Query(rate("tetrad:engine_kv_blocks_cached_total"), "cached"),
            Query(rate("tetrad:engine_kv_blocks_evicted_total"), "evicted"),
        ]),
        Panel("Blocks", [Query("sum by (instance) (tetrad:engine_kv_blocks)", "{{instance}}")], width=12),
        Panel("Memory of the workers", [
            Query("sum by (instance) (tetrad:worker_weights_bytes)", "{{instance}} weights"),
            Query("sum by (instance) (tetrad:worker_kv_cache_bytes)", "{{instance}} KV cache"),
            Query("sum by (instance) (tetrad:worker_peak_memory_bytes)", "{{instance}} process, at most"),
        ], "bytes", width=12),
    ),
)  # fmt: skip

_MEDIA, _ENCODE = "tetrad:tokenizer_media_seconds", "tetrad:worker_media_encode_seconds"

MEDIA = Row(
    "Media",
    (
        Panel("Media items a second", [
            Query(rate(f"{_MEDIA}_count"), "preprocessed"),
            Query(rate(f"{_ENCODE}_count"), "encoded"),
            Query(rate("tetrad:worker_media_failures_total") + _NONE, "not encoded"),
        ]),
        Panel("Mean time of a media item", [
            Query(mean(_MEDIA) + _NONE, "preprocessing, waiting included"),
            Query(mean(_ENCODE) + _NONE, "encoding"),
        ], "s"),
        Panel("Media items found in caches", [
            Query(f"{rate('tetrad:tokenizer_media_cache_hits_total')} / {rate('tetrad:tokenizer_media_cache_queries_total')}",
                  "preprocessed, of tokenizers"),
            Query(f"{rate('tetrad:engine_mm_cache_hits_total')} / {rate('tetrad:engine_mm_cache_queries_total')}",
                  "embeddings, of workers"),
        ], "percentunit"),
        Panel("Encoder caches in use", [
            Query("max by (instance) (tetrad:engine_encoder_cache_usage)", "{{instance}}")
        ], "percentunit"),
        Panel("Images being encoded", [Query("sum by (instance) (tetrad:engine_media_encoding)", "{{instance}}")]),
        Panel("Pixels in engine cores", [Query("sum by (instance) (tetrad:engine_media_bytes)", "{{instance}}")], "bytes"),
    ),
)  # fmt: skip

FAULTS = Row(
    "Faults",
    (
        Panel("Services that answer", [Query("sum by (job) (up)", "{{job}}")]),
        Panel("Connected, as frontends see it", [
            Query("min(tetrad:num_engines_connected)", "engine cores"),
            Query("min(tetrad:num_tokenizers_connected)", "tokenizers"),
            Query("sum(tetrad:engine_sessions)", "sessions, as engine cores see it"),
            Query("sum(tetrad:tokenizer_detokenize_streams)", "streams, as tokenizers see it"),
        ]),
        Panel("Losses a second", [
            Query(rate("tetrad:backend_losses_total") + _NONE, "tokenizers and engine cores"),
            Query(rate("tetrad:engine_worker_losses_total", "reason") + _NONE, "workers: {{reason}}"),
        ]),
        Panel("Requests refused or failed", [
            Query(rate("tetrad:request_errors_total", "reason") + _NONE, "{{reason}}"),
            Query(rate("tetrad:admission_rejections_total", "reason") + _NONE, "too much waits: {{reason}}"),
        ], "reqps"),
        Panel("Requests that engine cores did not take", [
            Query(rate("tetrad:engine_requests_rejected_total", "reason") + _NONE, "{{reason}}")
        ], "reqps"),
        Panel("Requests ended, as engine cores see it", [
            Query(rate("tetrad:engine_requests_finished_total", "finished_reason"), "{{finished_reason}}")
        ], "reqps"),
    ),
)  # fmt: skip

_BAD_CALLS = 'grpc_server_handled_total{grpc_code!~"OK|CANCELLED"}'

GRPC = Row(
    "gRPC",
    (
        Panel("Calls a second", [
            Query(rate("grpc_server_started_total", "job", "grpc_method"), "{{job}} {{grpc_method}}")
        ]),
        Panel("Calls that did not end well", [Query(rate(_BAD_CALLS, "job", "grpc_code") + _NONE, "{{job}} {{grpc_code}}")]),
        Panel("Unary calls, 95% are faster", [
            Query(quantile(0.95, "grpc_server_handling_seconds", "job", "grpc_method")
                  .replace("_bucket[", '_bucket{grpc_type="unary"}['), "{{job}} {{grpc_method}}")
        ], "s"),
    ),
)  # fmt: skip

PROCESSES = Row(
    "Processes",
    (
        Panel("CPU time a second", [Query(rate("process_cpu_seconds_total", "job", "instance"), "{{job}} {{instance}}")]),
        Panel("Memory", [Query("sum by (job, instance) (process_resident_memory_bytes)", "{{job}} {{instance}}")], "bytes"),
        Panel("Open files", [Query("sum by (job, instance) (process_open_fds)", "{{job}} {{instance}}")]),
        Panel("Detokenizer handles", [Query("sum by (instance) (tetrad:tokenizer_detokenize_handles)", "{{instance}}")]),
        Panel("Garbage collections a second", [Query(rate("python_gc_collections_total", "job"), "{{job}}")]),
        Panel("Releases", [Query("count by (service, version) (tetrad:build_info)", "{{service}} {{version}}")]),
    ),
)  # fmt: skip

ROWS = (OVERVIEW, REQUEST_TIME, STEP_TIME, SCHEDULER, KV_CACHE, MEDIA, FAULTS, GRPC, PROCESSES)
