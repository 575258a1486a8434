"""Fan-out: the latency of small requests while one client sends large requests, against their latency without it.

`python -m benchmarks.fan_out`. Four clients send short completions; each sends the next one as soon as it has the answer. They
run first alone, then beside a client that sends one large request after another. Quiet and disturbed phases alternate.
"""

import asyncio
import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import uvloop

from benchmarks.figures import median, percentile, spread
from benchmarks.options import Options, read_options
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL, running
from benchmarks.streams import StreamClient, new_prompt, stream_once

_NUM_CLIENTS = 4
_PROMPT_LEN = 16
_MAX_TOKENS = 8
_PHASE_S = 20.0
_WARM_UP_S = 2.0
_MAX_RATIO = 3.0
_DEVICES = ("cpu", "sim")
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Large:
    """A large request: the path of the API, and the body without the model's name."""

    path: str
    body: Mapping[str, object]


_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_LARGE = {
    "n = 1,024": Large(_COMPLETIONS, {"prompt": new_prompt(_PROMPT_LEN), "n": 1024, "max_tokens": 32, "stream": True}),
    "1,024 prompts": Large(
        _COMPLETIONS, {"prompt": [new_prompt(_PROMPT_LEN) for _ in range(1024)], "max_tokens": 8, "stream": True}
    ),
    "all log-probabilities": Large(_COMPLETIONS, {"prompt": new_prompt(_PROMPT_LEN), "n": 2, "max_tokens": 5, "logprobs": -1}),
    "all log-probabilities, streamed": Large(
        _COMPLETIONS, {"prompt": new_prompt(_PROMPT_LEN), "n": 2, "max_tokens": 5, "logprobs": -1, "stream": True}
    ),
    "all log-probabilities, chat": Large(
        _CHAT,
        {"messages": [{"role": "user", "content": "x"}], "n": 2, "max_tokens": 5, "logprobs": True, "top_logprobs": -1},
    ),
}


@dataclass
class Latencies:
    """The latencies of small requests.

    Attributes:
        quiet_ms, busy_ms: milliseconds until the whole answer, in quiet and in disturbed phases of all rounds.
        ratios: p99 of disturbed over quiet phases, one value per round.
        first_ratios: the same for the time to the first token.
    """

    quiet_ms: list[float] = field(default_factory=list)
    busy_ms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    first_ratios: list[float] = field(default_factory=list)

    def add(self, quiet: list[StreamClient], busy: list[StreamClient]) -> None:
        """Add the requests of a round."""
        quiet_ms, busy_ms = ([1e3 * each.total_s for each in found] for found in (quiet, busy))
        first, first_busy = ([1e3 * (each.first_chunk_s or 0.0) for each in found] for found in (quiet, busy))
        self.quiet_ms += quiet_ms
        self.busy_ms += busy_ms
        self.ratios.append(percentile(busy_ms, 0.99) / percentile(quiet_ms, 0.99))
        self.first_ratios.append(percentile(first_busy, 0.99) / percentile(first, 0.99))


class Attacker:
    """A thread that sends one large request after another. It reads answers without parsing them.

    Args:
        url: URL of the server.
        large: the request.

    Attributes:
        num_answers: number of answers that were read to the end.
        problem: the first answer with a status other than 200, which ends the thread.
    """

    def __init__(self, url: str, large: Large) -> None:
        self.num_answers = 0
        self.problem = ""
        self._address = urlsplit(url).netloc
        self._path = large.path
        self._body = json.dumps(_body(**large.body)).encode()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Cancel the current request and end the thread."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        buffer = bytearray(_READ_BYTES)
        while not self._is_over.is_set() and not self.problem:
            with contextlib.closing(http.client.HTTPConnection(self._address, timeout=120)) as connection:
                connection.request("POST", self._path, self._body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status != 200:
                    self.problem = f"the large request: HTTP {response.status}: {response.read()[:300]!r}"
                while not self._is_over.is_set() and response.readinto(buffer):
                    pass
                self.num_answers += response.isclosed()


@contextlib.contextmanager
def attacked(url: str, large: Large) -> Iterator[None]:
    """Send large requests while the context is open; RuntimeError if one was refused."""
    attacker = Attacker(url, large)
    try:
        yield
    finally:
        attacker.stop()
    if attacker.problem:
        raise RuntimeError(attacker.problem)


async def small_requests(url: str, phase_s: float) -> list[StreamClient]:
    """Send short completions for `phase_s` seconds and return their streams; RuntimeError if one fails."""
    done: list[StreamClient] = []
    end = time.perf_counter() + phase_s

    async def client() -> None:
        while time.perf_counter() < end:
            done.append(await stream_once(url, _body(prompt=new_prompt(_PROMPT_LEN), max_tokens=_MAX_TOKENS)))
            if done[-1].error:
                raise RuntimeError(f"HTTP {done[-1].status}: {done[-1].error}")

    async with asyncio.TaskGroup() as group:
        for _ in range(_NUM_CLIENTS):
            group.create_task(client())
    return done


def run_round(url: str, large: Large, phase_s: float) -> tuple[list[StreamClient], list[StreamClient]]:
    """Return the small requests of a quiet phase and of a phase with large requests."""
    quiet = uvloop.run(small_requests(url, phase_s))
    with attacked(url, large):
        return quiet, uvloop.run(small_requests(url, phase_s))


def _body(**fields: object) -> dict[str, object]:
    return {"model": MODEL, "ignore_eos": True, "temperature": 1, **fields}


def measure(options: Options) -> dict[tuple[str, str], Latencies]:
    """Return (device, name of the large request) -> latencies."""
    found = {case: Latencies() for case in itertools.product(_DEVICES, _LARGE)}
    for device in _DEVICES:
        with running("--device", device, "--max-logprobs", "-1") as stack:
            for large in _LARGE.values():
                run_round(stack.url, large, _WARM_UP_S)
            for number, name in itertools.product(range(options.rounds), _LARGE):
                case = found[device, name]
                case.add(*run_round(stack.url, _LARGE[name], _PHASE_S / 4 if options.quick else _PHASE_S))
                print(f"round {number + 1}/{options.rounds}: {device}, {name}: ratio {case.ratios[-1]:.2f}", flush=True)
    return found


def _section(found: Mapping[tuple[str, str], Latencies]) -> Section:
    section = Section(f"Others' latency: {_NUM_CLIENTS} clients with short requests beside one with large ones")
    section.text(
        f"SmolLM2-135M-Instruct and the simulated device, over HTTP. Milliseconds to the whole answer of {_MAX_TOKENS} tokens; "
        "the ratios are of p99 beside the large requests over p99 before them, of the whole answer and of its first token. The "
        "large requests follow each other without a pause: one of 1,024 sequences, or two outputs of five tokens with the "
        "log-probabilities of all 49,152 tokens."
    )
    rows = [
        [
            f"{device}, {name}",
            f"{median(each.quiet_ms):.1f}",
            f"{percentile(each.quiet_ms, 0.99):.1f}",
            f"{median(each.busy_ms):.1f}",
            f"{percentile(each.busy_ms, 0.99):.1f}",
            spread(each.ratios, 2),
            spread(each.first_ratios, 2),
        ]
        for (device, name), each in found.items()
    ]
    section.table(["", "quiet: median", "p99", "beside it: median", "p99", "ratio of p99", "of p99 to the first token"], rows)
    bars = [
        Bar(f"{device}, {name}: ratio of p99", _MAX_RATIO, median(each.ratios), at_most=True)
        for (device, name), each in found.items()
    ]
    add_bars(section, bars)
    return section


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("fan_out", __doc__)
    write_section("fan_out", _section(measure(options)), options)


if __name__ == "__main__":
    main()
