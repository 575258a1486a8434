"""LoRA adapters over HTTP: Tetrad's server and vLLM's, each with the base model and with adapters, in alternation."""

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import uvloop

from benchmarks.adapters import RANK, save_adapter
from benchmarks.figures import ratios, spread
from benchmarks.http_load import rest, run_load
from benchmarks.options import Options
from benchmarks.peers.installed import SMOLLM2, VLLM, is_installed
from benchmarks.peers.vllm_server import vllm_server
from benchmarks.report import Section
from benchmarks.stack import MODEL, running
from benchmarks.streams import new_prompt

_NUM_ADAPTERS = 8
_CASES = {1: (1, 65), 32: (_NUM_ADAPTERS, 33)}
"""Batch -> number of adapters in it, and output tokens of each request."""

Rates = dict[str, dict[int, dict[str, list[float]]]]
"""System -> batch -> "base" or "adapters" -> tokens per second, one value per round."""


def measure_servers(options: Options) -> Rates:
    """Run all rounds and return their results; none without an installed vLLM, because lora.py measures Tetrad alone."""
    if not (options.with_peers and is_installed(VLLM, SMOLLM2)):
        return {}
    with ExitStack() as exits:
        directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="loras-")))
        paths = [save_adapter(directory, number) for number in range(1, _NUM_ADAPTERS + 1)]
        flags = ["--enable-lora", "--max-loras", str(_NUM_ADAPTERS), "--max-lora-rank", str(RANK), "--lora-modules"]
        flags += [f"{path.name}={path}" for path in paths]
        urls = {
            "Tetrad, float32": exits.enter_context(running("--dtype", "float32", "--device", "cpu", *flags)).url,
            VLLM: exits.enter_context(vllm_server(SMOLLM2.floats, *flags)).url,
        }
        models = [path.name for path in paths]
        found: Rates = {name: {batch: {"base": [], "adapters": []} for batch in _CASES} for name in urls}
        for number in range(options.rounds + 1):
            for batch, (count, num_tokens) in _CASES.items():
                for name, url in urls.items():
                    for kind, chosen in (("base", [MODEL]), ("adapters", models[:count])):
                        rate = _rate(url, batch, chosen, num_tokens)
                        if number:  # the first round warms up
                            found[name][batch][kind].append(rate)
            print(f"servers, round {number}/{options.rounds} is done", flush=True)
        return found


def _rate(url: str, batch: int, models: list[str], num_tokens: int) -> float:
    """Return tokens/s of `batch` streams, which share the models evenly, from the first request to the last answer."""
    each = batch // len(models)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for model in models:
                prompts = [new_prompt(17) for _ in range(each)]
                group.create_task(
                    run_load(url, model=model, concurrency=each, num_requests=each, max_tokens=num_tokens, prompts=prompts)
                )

    rest()
    started = time.perf_counter()
    uvloop.run(run())
    return batch * num_tokens / (time.perf_counter() - started)


def add_servers(section: Section, found: Rates) -> None:
    """Add a table of these results to the section, if there are any."""
    if not found:
        return
    section.text("Over HTTP, beside vLLM, both in float32; tokens/s from the first request to the last answer:")
    rows = []
    for name, by_batch in found.items():
        for batch, rates in by_batch.items():
            share = ratios(rates["adapters"], rates["base"])
            rows.append(
                [name, str(batch), str(_CASES[batch][0]), spread(rates["base"]), spread(rates["adapters"]), spread(share, 2)]
            )
    section.table(["", "batch", "adapters", "base, tokens/s", "adapters, tokens/s", "adapters / base"], rows)
