"""`tetrad bench`: streams completions from a server and prints their latencies; with --trace, also the parts of a step.

Uses a running server (--url), or starts one for the duration.
"""

import argparse
import asyncio
import json
import ssl
import tempfile
from dataclasses import replace
from pathlib import Path

import uvloop

from tetrad.cli.http_client import HttpClient
from tetrad.cli.load.draft_counts import DraftCounts, read_draft_counts
from tetrad.cli.load.generator import Load, Measured, run_load
from tetrad.cli.load.step_trace import StepTrace
from tetrad.cli.load.summary import figures_of, table_of
from tetrad.cli.options import add_engine_options, new_parser
from tetrad.cli.own_server import serving, unless_failed
from tetrad.services.errors import InvalidRequest, TetradError, Unavailable
from tetrad.services.settings import ServiceSettings

_MAX_WARM_UP = 8


def run(arguments: list[str]) -> int:
    """Measure; returns 1 if a request failed."""
    options = _parse(arguments)
    if options.trace is None:
        measured = uvloop.run(_measure(options, None))
    else:
        with tempfile.TemporaryDirectory(prefix="tetrad-trace-") as directory:
            measured = uvloop.run(_measure(options, Path(directory)))
            _report_steps(Path(directory), measured, options.trace)
    figures = figures_of(measured)
    if figures["completed"]:  # without requests there is no latency
        print(table_of(figures))
    if options.result is not None:
        options.result.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    errors = [client.error for client in measured.clients if client.error]
    if errors:
        raise Unavailable(f"{len(errors)} of {options.num_requests} requests failed; the first: {errors[0]}")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = new_parser(
        "bench", "Measure latency and throughput of a server with streamed completions of random prompts.", usage="[OPTIONS]"
    )
    parser.add_argument("--url", default=None, help="URL of the server to measure. Unset: start one for the measurement.")
    parser.add_argument("--api-key", default=None, metavar="KEY", help="API key for the server at --url.")
    text = "Certificate authorities (PEM file) to trust for an https URL. Unset: the system's."
    parser.add_argument("--ca-file", type=Path, default=None, metavar="PATH", help=text)
    parser.add_argument(
        "--concurrency", type=int, default=16, metavar="N", help="Number of requests in flight at the same time."
    )
    parser.add_argument("--num-requests", type=int, default=64, metavar="N", help="Total number of requests.")
    parser.add_argument("--input-len", type=int, default=32, metavar="N", help="Length of each prompt, in tokens.")
    parser.add_argument("--output-len", type=int, default=128, metavar="N", help="Length of each output, in tokens.")
    parser.add_argument("--timeout-s", type=float, default=600.0, metavar="X", help="Maximum time of one request, in seconds.")
    text = "Also write the results to this file, as JSON."
    parser.add_argument("--result", type=Path, default=None, metavar="FILE", help=text)
    text = "Write a trace of every step in all services to this file, for ui.perfetto.dev. Not possible with --url."
    parser.add_argument("--trace", type=Path, default=None, metavar="FILE", help=text)
    text = "Maximum time to start the server, in seconds."
    parser.add_argument("--start-timeout-s", type=float, default=600.0, metavar="X", help=text)
    add_engine_options(parser, model_flag=True)
    options = parser.parse_args(arguments)
    for name in ("concurrency", "num_requests", "input_len", "output_len", "timeout_s", "start_timeout_s"):
        if not getattr(options, name) > 0:
            text = f"--{name.replace('_', '-')} must be more than 0, got {getattr(options, name):g}."
            raise InvalidRequest(text, field=name)
    if options.trace is not None and options.url is not None:
        raise InvalidRequest("--trace needs a server of its own; leave --url out.", field="trace")
    return options


async def _measure(options: argparse.Namespace, trace_directory: Path | None) -> Measured:
    """Run the load against the server, after a few requests that are not counted."""
    measured: list[Measured] = []

    async def measure(url: str) -> None:
        load = await asyncio.to_thread(_load, options, url)
        tried = (await run_load(_warm_up(load))).clients
        if all(client.error for client in tried):
            raise Unavailable(f"The server answers none of these requests: {tried[0].error}")
        before = await asyncio.to_thread(_draft_counts, options, url)
        measured.append(await run_load(load))
        measured[0].drafts = (await asyncio.to_thread(_draft_counts, options, url)).since(before)

    def traced(name: str, settings: ServiceSettings) -> ServiceSettings:
        path = None if trace_directory is None else trace_directory / f"{name}.json"
        return settings.model_copy(update={"trace_path": path})

    async with serving(options, adapt=traced) as (url, wait_failed):
        await unless_failed(measure(url), wait_failed())
    return measured[0]


def _load(options: argparse.Namespace, url: str) -> Load:
    with HttpClient(url, api_key=options.api_key, ca_file=options.ca_file) as client:
        model, base = client.model_name(None), client.url
    trust = ssl.create_default_context(cafile=options.ca_file) if base.startswith("https:") else None
    return Load(
        url=base,
        model=model,
        concurrency=options.concurrency,
        num_requests=options.num_requests,
        input_len=options.input_len,
        output_len=options.output_len,
        timeout_s=options.timeout_s,
        api_key=options.api_key,
        trust=trust,
    )


def _draft_counts(options: argparse.Namespace, url: str) -> DraftCounts:
    """Return what the server has counted of drafts; nothing if it has no metrics."""
    with HttpClient(url, api_key=options.api_key, ca_file=options.ca_file) as client:
        try:
            return read_draft_counts(client.get_text("/metrics"))
        except (TetradError, ValueError):
            return DraftCounts()


def _warm_up(load: Load) -> Load:
    number = min(load.concurrency, _MAX_WARM_UP)
    return replace(load, concurrency=number, num_requests=number, output_len=min(load.output_len, 8), seed=1)


def _report_steps(directory: Path, measured: Measured, path: Path) -> None:
    trace = StepTrace(sorted(directory.glob("*.json")), measured.began_at, measured.ended_at)
    trace.write(path)
    print(f"{trace.table()}\n\n{trace.num_steps} steps are in {path}; open it at https://ui.perfetto.dev\n")
