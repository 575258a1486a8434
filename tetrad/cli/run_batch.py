"""`tetrad run-batch`: answers all requests of an OpenAI batch file, through the HTTP API of a local stack or a server.

Results are appended as requests finish. A new start after an interrupted run continues it: lines with a result are not sent
again, except those with a temporary failure. The exit code is 1 if a line failed.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tetrad.cli.batch_file.lines import Key, Line, keys_of, read_lines
from tetrad.cli.batch_file.results import ResultFile, has_failed, may_pass
from tetrad.cli.batch_file.sender import BatchSender
from tetrad.cli.batch_file.source import local_source
from tetrad.cli.batch_file.target import ResultTarget
from tetrad.cli.options import add_engine_options, new_parser
from tetrad.cli.own_server import START_TIMEOUT_HELP, serving, unless_failed
from tetrad.cli.sampling_options import add_server_credentials
from tetrad.cli.termination import TERMINATED, cancel_at_sigterm, exit_at_sigterm
from tetrad.library.progress import Bar
from tetrad.services.errors import InvalidRequest

_INTERRUPTED = 128 + signal.SIGINT


def run(arguments: list[str]) -> int:
    """Answer the batch; return 0 if every line succeeded, 1 if some failed."""
    options = _parse(arguments)
    with (
        exit_at_sigterm(),
        local_source(options.input_file, options.ca_file) as source,
        ResultTarget(options.output_file, options.ca_file) as target,
    ):
        code = _run(options, source, target)
        if code in (0, 1):
            target.deliver()
        return code


def _run(options: argparse.Namespace, source: Path, target: ResultTarget) -> int:
    numbers = keys_of(source)
    if os.path.exists(target.path) and target.path.samefile(source):  # noqa: PTH110 - takes a name that is too long
        raise InvalidRequest(f"{target} is the input; the output must be another file.", field="output_file")
    with ResultFile(target.path) as results:
        done, num_failed = results.done & numbers.keys(), len(results.failed & numbers.keys())
        if done:
            failed = f", {num_failed} of them failed" if num_failed else ""
            print(f"{len(done)} of {len(numbers)} requests are in {target} already{failed}", file=sys.stderr)
        if len(done) == len(numbers):
            return _exit_code(num_failed)
        tally = Tally(total=len(numbers), done=len(done), results=results)
        try:
            with exit_at_sigterm():  # the event loop resets the signal's handler at its end
                asyncio.run(_answer(options, _without(read_lines(source), done), tally))
        except (asyncio.CancelledError, KeyboardInterrupt) as stop:
            print(f"Stopped; {target.again} to go on. {tally.summary()}", file=sys.stderr)
            return _INTERRUPTED if isinstance(stop, KeyboardInterrupt) else TERMINATED
        print(f"{tally.summary()} -> {target}")
        if tally.num_passing:
            print(f"{tally.num_passing} of the failures may pass; {target.repetition}.", file=sys.stderr)
        return _exit_code(tally.num_failed + num_failed)


def _exit_code(num_failed: int) -> int:
    return 1 if num_failed else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = new_parser(
        "run-batch",
        "Answer every request of an OpenAI batch file. If it was interrupted, the same command continues where it stopped.",
        usage="-i FILE -o FILE [OPTIONS]",
    )
    text = "File of requests, one JSON object per line; or its http or https URL."
    parser.add_argument("-i", "--input-file", required=True, metavar="FILE", help=text)
    parser.add_argument(
        "-o",
        "--output-file",
        required=True,
        metavar="FILE",
        help="File to which results are appended as requests finish; or an http or https URL to which they are uploaded "
        "(PUT) at the end.",
    )
    parser.add_argument("--url", default=None, help="URL of the server to use. Unset: start one for the batch.")
    add_server_credentials(parser)
    parser.add_argument(
        "--concurrency", type=int, default=256, metavar="N", help="Number of requests in flight at the same time."
    )
    parser.add_argument("--timeout-s", type=float, default=3600.0, metavar="X", help="Maximum time of one request, in seconds.")
    parser.add_argument("--start-timeout-s", type=float, default=None, metavar="X", help=START_TIMEOUT_HELP)
    add_engine_options(parser, model_flag=True)
    options = parser.parse_args(arguments)
    for name in ("concurrency", "timeout_s", "start_timeout_s"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            text = f"--{name.replace('_', '-')} must be more than 0, got {value}."
            raise InvalidRequest(text, field=name)
    return options


def _without(lines: Iterator[Line], done: set[Key]) -> Iterator[Line]:
    return (line for line in lines if line.key not in done)


async def _answer(options: argparse.Namespace, lines: Iterator[Line], tally: "Tally") -> None:
    cancel_at_sigterm()
    async with serving(options) as (url, wait_failed):
        sender = BatchSender(
            url,
            concurrency=min(options.concurrency, tally.total),  # each worker has a client
            timeout_s=options.timeout_s,
            api_key=options.api_key,
            ca_file=options.ca_file,
        )
        await sender.check()
        with tally:
            await unless_failed(sender.run(lines, tally.add), wait_failed())


class Tally:
    """Writes results, counts them and shows the progress of the batch.

    Args:
        total: number of lines of the batch.
        done: number of lines that an earlier run has answered.
        results: the file of the results.

    Attributes:
        total: number of lines of the batch.
        num_failed: number of failures in this run.
        num_passing: number of temporary failures among them.
    """

    def __init__(self, *, total: int, done: int, results: ResultFile) -> None:
        self.total = total
        self._earlier = done
        self._results = results
        self._num_answered = self._num_tokens = 0
        self.num_failed = self.num_passing = 0
        self._started_at = self._ended_at = time.monotonic()
        self._bar: Bar | None = None

    def add(self, result: dict[str, Any]) -> None:
        """Write and count a result."""
        self._results.append(result)
        if has_failed(result):
            self.num_failed += 1
            self.num_passing += may_pass(result)
        else:
            self._num_answered += 1
            self._num_tokens += _completion_tokens(result["response"]["body"])
        if self._bar is not None:
            rate = self._num_tokens / max(time.monotonic() - self._started_at, 1e-9)
            self._bar.set_postfix_str(f"output: {rate:.1f} toks/s, failed: {self.num_failed}", refresh=False)
            self._bar.update(1)

    def summary(self) -> str:
        """Return a summary of this run, in one line."""
        now = self._num_answered + self.num_failed
        passed_s = max(self._ended_at - self._started_at, 1e-9)
        earlier = f", {self._earlier} answered before" if self._earlier else ""
        rates = f"{now / passed_s:.1f} req/s, {self._num_tokens / passed_s:.1f} output toks/s"
        return f"{self._num_answered} of {self.total} requests succeeded, {self.num_failed} failed{earlier} ({rates})"

    def __enter__(self) -> Self:
        self._started_at = time.monotonic()
        with contextlib.suppress(ImportError):
            from tqdm import tqdm  # an extra of the package

            self._bar = tqdm(total=self.total, initial=self._earlier, desc="Running batch", unit="req", dynamic_ncols=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended_at = time.monotonic()
        if self._bar is not None:
            self._bar.close()


def _completion_tokens(body: dict[str, Any]) -> int:
    """Return the number of generated tokens that an answer reports; 0 if it reports none in OpenAI's form."""
    usage = body.get("usage")
    number = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return number if isinstance(number, int) else 0
