"""`tetrad bench`: sends streamed requests to a server and prints their latencies; with --trace, also the parts of a step.

Uses a running server (--url), or starts one for the duration; --against compares it with a second one. The package
tetrad/cli/load makes the load.
"""

import argparse
import asyncio
import contextlib
import json
import ssl
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from tetrad.cli.http_client import HttpClient
from tetrad.cli.load.datasets import Dataset, RandomPrompts
from tetrad.cli.load.draft_counts import DraftCounts, read_draft_counts
from tetrad.cli.load.generator import Level, Load, Server, run_load
from tetrad.cli.load.options import parse, plan_of
from tetrad.cli.load.random_media import RandomMedia
from tetrad.cli.load.report import report_of
from tetrad.cli.load.results import document_of, text_of
from tetrad.cli.load.step_trace import StepTrace
from tetrad.cli.load.sweep import LevelResult, Plan, run_sweep
from tetrad.cli.own_server import serving, unless_failed
from tetrad.cli.termination import TERMINATED, cancel_at_sigterm, exit_at_sigterm
from tetrad.library.progress import ProgressBar
from tetrad.services.errors import InvalidRequest, TetradError, Unavailable
from tetrad.services.settings import ServiceSettings

_MAX_WARM_UP = 8


def run(arguments: list[str]) -> int:
    """Run the benchmark and print its results; Unavailable if a request failed."""
    options = parse(arguments)
    plan = plan_of(options)
    try:
        results = _results(options, plan)
    except asyncio.CancelledError:
        return TERMINATED
    if any(figures["completed"] for result in results for figures in result.figures()):  # else there is no latency
        print(text_of(results))
    if options.json is not None:
        with _writing("json", options.json):
            options.json.write_text(json.dumps(document_of(results), indent=1) + "\n", "utf-8")
    if options.html is not None:
        with _writing("html", options.html):
            options.html.write_text(report_of(results), "utf-8")
    clients = [client for result in results for measured in result.measured() for client in measured.clients]
    errors = [client.error for client in clients if client.error]
    if errors:
        raise Unavailable(f"{len(errors)} of {len(clients)} requests failed; the first: {errors[0]}")
    return 0


@contextlib.contextmanager
def _writing(name: str, path: Path) -> Iterator[None]:
    """Name the option and the file in the error of a write."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"--{name} {path} cannot be written: {error.strerror or error}.") from error


def _results(options: argparse.Namespace, plan: Plan) -> list[LevelResult]:
    results: list[LevelResult]
    if options.trace is None:
        results = uvloop.run(_measure(options, plan, None))
    else:
        with exit_at_sigterm(), tempfile.TemporaryDirectory(prefix="tetrad-trace-") as directory:
            results = uvloop.run(_measure(options, plan, Path(directory)))
            _report_steps(Path(directory), results[0], options.trace)
    return results


async def _measure(options: argparse.Namespace, plan: Plan, trace_directory: Path | None) -> list[LevelResult]:
    """Run the load against the servers, after a few warm-up requests that are not counted."""
    cancel_at_sigterm()
    results: list[LevelResult] = []

    async def measure(url: str) -> None:
        urls = [url] if options.against is None else [url, options.against]
        servers = [await asyncio.to_thread(_server, options, each) for each in urls]
        for server in servers:
            _check_lengths(server, plan.dataset)
            await _warm_up(server, plan, options)
        total = len(servers) * len(plan.levels) * plan.rounds * plan.num_requests
        shows_bar = sys.stderr.isatty() and not options.disable_tqdm
        with ProgressBar(total, use_tqdm=shows_bar, what="Requests", shows_speed=False) as bar:
            sweep = run_sweep(plan, servers, lambda server: _draft_counts(options, server), bar.step)
            results.extend([result async for result in sweep])

    def traced(name: str, settings: ServiceSettings) -> ServiceSettings:
        path = None if trace_directory is None else trace_directory / f"{name}.json"
        return settings.model_copy(update={"trace_path": path})

    async with serving(options, adapt=traced) as (url, wait_failed):
        await unless_failed(measure(url), wait_failed())
    return results


def _server(options: argparse.Namespace, url: str) -> Server:
    with HttpClient(url, api_key=options.api_key, ca_file=options.ca_file) as client:
        card, base = client.first_model(), client.url
    trust = ssl.create_default_context(cafile=options.ca_file) if base.startswith("https:") else None
    limit = card.get("max_model_len")
    return Server(base, str(card["id"]), options.api_key, trust, limit if isinstance(limit, int) else None)


def _check_lengths(server: Server, dataset: Dataset) -> None:
    """Raise InvalidRequest if the server would refuse all requests: such long ones are not even made."""
    limit = server.max_model_len
    if limit is not None and dataset.least_len > limit:
        text = f"Requests of {dataset.least_len} tokens, prompt and output, exceed the maximum of {server.url}, {limit} tokens"
        raise InvalidRequest(f"{text}; choose a smaller --input-len or --output-len.", field="input_len")


async def _warm_up(server: Server, plan: Plan, options: argparse.Namespace) -> None:
    """Send random prompts, with media if the plan has them, to warm up the server; Unavailable if all of them fail."""
    number = min(plan.num_requests, max((level.concurrency or 1) for level in plan.levels), _MAX_WARM_UP)
    output_len = min(options.output_len, 8)
    dataset: Dataset = RandomPrompts(options.input_len, output_len)
    if isinstance(plan.dataset, RandomMedia):
        dataset = replace(plan.dataset, output_len=output_len)
    _check_lengths(server, dataset)
    load = Load(server, dataset, Level(number), number, plan.timeout_s, seed=plan.seed + plan.rounds)
    tried: Sequence[str] = [client.error for client in (await run_load(load)).clients]
    if all(tried):
        where = "" if options.against is None else f" at {server.url}"
        raise Unavailable(f"The server{where} answers none of these requests: {tried[0]}")


def _draft_counts(options: argparse.Namespace, server: Server) -> DraftCounts:
    """Return the server's counts of drafts; zeros if its metrics cannot be read."""
    with HttpClient(server.url, api_key=options.api_key, ca_file=options.ca_file) as client:
        try:
            return read_draft_counts(client.get_text("/metrics"))
        except (TetradError, ValueError):
            return DraftCounts()


def _report_steps(directory: Path, result: LevelResult, path: Path) -> None:
    measured = result.measured()[0]
    trace = StepTrace(sorted(directory.glob("*.json")), measured.began_at, measured.ended_at)
    with _writing("trace", path):
        trace.write(path)
    print(f"{trace.table()}\n\n{trace.num_steps} steps are in {path}; open it at https://ui.perfetto.dev\n")
