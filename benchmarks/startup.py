"""Start-up and memory: the time from `tetrad serve` to the first answer of /health, and each service's memory after some work.

`python -m benchmarks.startup`. All processes are new. The model's file is read once before, so that the disk is not measured.
Memory is the proportional set size: each process counts its share of shared pages.
"""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import median, spread
from benchmarks.http_load import load
from benchmarks.options import Options, read_options
from benchmarks.processes import ProcessTree
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL, Stack, running
from benchmarks.systems import TETRAD_FLOAT32, TETRAD_GGUF
from tetrad.services.hub.model_files import resolve_model
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.families.registry import read_config

_MAX_START_S = 6.0
_WORKER_MARGIN_MB = 300.0
_MAX_OTHER_MB = 250.0
_MB = 1e6
_WORK = ((16, 32, 64), (1, 1000, 8))
"""Loads before memory is read: (number of concurrent requests, prompt tokens, output tokens)."""
_WORKER = "worker"
_DTYPES = {TETRAD_GGUF: "auto", TETRAD_FLOAT32: "float32"}
_KV_BYTES = {TETRAD_GGUF: 34 / 32, TETRAD_FLOAT32: 4}
"""Bytes per number of a key or value; 32 numbers of 8 bits share a scale of 2 bytes."""


@dataclass
class Starts:
    """The results with one form of the weights, one value per start.

    Attributes:
        seconds: time until the first answer of /health.
        memory_mb: service -> megabytes of its largest process.
        weights_mb, kv_pool_mb: megabytes of the weights and of the KV cache.
    """

    seconds: list[float] = field(default_factory=list)
    memory_mb: dict[str, list[float]] = field(default_factory=dict)
    weights_mb: float = 0.0
    kv_pool_mb: float = 0.0


def measure(options: Options) -> dict[str, Starts]:
    """Return the results by form of the weights: start a stack, run the loads, read its memory and stop it, alternately."""
    resolve_model(MODEL).read_bytes()
    found = {name: Starts() for name in _DTYPES}
    for number in range(options.rounds):
        for name, starts in found.items():
            with tempfile.TemporaryDirectory() as folder:
                log = Path(folder) / "log"
                with running("--device", "cpu", "--dtype", _DTYPES[name], "--log-level", "info", log=log) as stack:
                    starts.seconds.append(stack.start_s)
                    _work(stack)
                    _note_memory(stack, starts)
                starts.weights_mb = _logged(log, "weights_size_bytes") / _MB
                starts.kv_pool_mb = _logged(log, "num_blocks") * _logged(log, "block_size") * _kv_mb_per_token(name)
            print(f"round {number + 1}/{options.rounds}: {name}: {starts.seconds[-1]:.2f} s", flush=True)
    return found


def _work(stack: Stack) -> None:
    for concurrency, prompt_len, max_tokens in _WORK:
        load(stack.url, MODEL, concurrency, num_requests=concurrency, max_tokens=max_tokens, prompt_len=prompt_len)


def _note_memory(stack: Stack, starts: Starts) -> None:
    for service, sizes in ProcessTree(stack.pid).memory_bytes().items():
        starts.memory_mb.setdefault(service, []).append(max(sizes) / _MB)


def _logged(log: Path, field_name: str) -> int:
    """Return a field that the services log about the model and its KV cache."""
    lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    return int(next(line[field_name] for line in lines if field_name in line))


def _kv_mb_per_token(name: str) -> float:
    config = read_config(read_model_config(resolve_model(MODEL)))
    return config.num_layers * 2 * config.num_kv_heads * config.head_dim * _KV_BYTES[name] / _MB


def kv_in_use_mb(name: str) -> float:
    """Return the megabytes of keys and values of all tokens of the loads; no two prompts are equal."""
    return _kv_mb_per_token(name) * sum(requests * (prompt + output) for requests, prompt, output in _WORK)


def _bars(found: dict[str, Starts]) -> list[Bar]:
    bars = []
    for name, starts in found.items():
        bars.append(Bar(f"{name}: seconds to ready", _MAX_START_S, median(starts.seconds), at_most=True, unit=" s"))
        for service, sizes in starts.memory_mb.items():
            limit = _MAX_OTHER_MB
            if service == _WORKER:
                limit = round(starts.weights_mb + kv_in_use_mb(name) + _WORKER_MARGIN_MB)
            bars.append(Bar(f"{name}: memory of the {service}", limit, median(sizes), at_most=True, unit=" MB"))
    return bars


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("startup", __doc__)
    found = measure(options)
    section = Section("Start-up and memory")
    section.text(
        f"SmolLM2-135M-Instruct, page cache warm. Memory (PSS, MB, the largest process of a service) after "
        f"{' and '.join(f'{n} x ({prompt} in, {output} out)' for n, prompt, output in _WORK)}. The worker's bar is its "
        f"weights, KV in use and {_WORKER_MARGIN_MB:.0f} MB: of the pool of KV blocks only what is in use takes memory. Its "
        "rest is what it holds besides weights and KV in use."
    )
    services = list(next(iter(found.values())).memory_mb)
    section.table(
        ["", "seconds to ready", "weights MB", "KV pool MB", "KV in use MB", *services, "worker's rest"],
        [
            [
                name,
                spread(each.seconds, 2),
                *(f"{size:.0f}" for size in (each.weights_mb, each.kv_pool_mb, kv_in_use_mb(name))),
                *(spread(each.memory_mb[service]) for service in services),
                f"{median(each.memory_mb[_WORKER]) - each.weights_mb - kv_in_use_mb(name):.0f}",
            ]
            for name, each in found.items()
        ],
    )
    add_bars(section, _bars(found))
    write_section("startup", section, options)


if __name__ == "__main__":
    main()
