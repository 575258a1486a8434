"""LoRA adapters: decode rates with and without adapters, and the evenness of streams while other adapters load.

`python -m benchmarks.lora`. All services run in one process over the direct carrier, with SmolLM2-135M in quantized weights
(Q4_1). Adapters have rank 16 on all linear layers in bfloat16: 10 MB each, where the model has 98 MB.
"""

import asyncio
import gc
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import uvloop

from benchmarks.adapters import save_adapter
from benchmarks.figures import median, percentile, ratios, spread
from benchmarks.lora_servers import Rates as ServerRates
from benchmarks.lora_servers import add_servers, measure_servers
from benchmarks.options import Options, read_options
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.services.log import configure_logging
from tetrad.stack.one_process import OneProcessSettings, running

_NUM_ADAPTERS = 8
_CASES = {1: (1, 0.8), 32: (_NUM_ADAPTERS, 0.75)}
"""Batch -> number of adapters in it, and the required least share of the base model's rate."""
_STEPS = {1: 96, 32: 48}
_MOST_TAIL = 2.0

Rates = dict[int, dict[str, list[float]]]
"""Batch -> "base" or "adapters" -> tokens per second, one value per round."""


class Figures:
    """The results: rates, and milliseconds between two outputs of a stream, while no adapter loads and while adapters load."""

    def __init__(self) -> None:
        self.rates: Rates = {batch: {"base": [], "adapters": []} for batch in _CASES}
        self.gaps_ms: dict[str, list[float]] = {"none loads": [], "adapters load": []}
        self.num_loads = 0
        self.servers: ServerRates = {}


def measure(options: Options) -> Figures:
    """Run all rounds and return their results."""
    configure_logging("benchmark", level="warning", json=False)
    found: Figures = uvloop.run(_measure(options))
    found.servers = measure_servers(options)
    return found


async def _measure(options: Options) -> Figures:
    found = Figures()
    with tempfile.TemporaryDirectory(prefix="loras-") as directory:
        loras = [_new_adapter(Path(directory), number) for number in range(1, 2 * _NUM_ADAPTERS + 1)]
        engine_core = {
            "num_gpu_blocks_override": 1024,
            "enable_lora": True,
            "max_loras": _NUM_ADAPTERS,
            "max_cpu_loras": 2 * _NUM_ADAPTERS,
        }
        settings = OneProcessSettings.of(MODEL, "direct", worker={"device": "cpu"}, engine_core=engine_core)
        async with running(settings, DirectCarrier()) as llm:
            gc.freeze()  # as each service does at its start
            for lora in loras[:_NUM_ADAPTERS]:
                await llm.engine_admin.load_lora(lora)
            await _decode(llm, 32, 8, loras[:_NUM_ADAPTERS])
            for number in range(options.rounds):
                for batch, (count, _) in _CASES.items():
                    for name, chosen in (("base", []), ("adapters", loras[:count])):
                        found.rates[batch][name].append(await _decode(llm, batch, _STEPS[batch], chosen))
                shares = {batch: ratios(each["adapters"], each["base"])[-1] for batch, each in found.rates.items()}
                shown = ", ".join(f"batch {batch}: {share:.2f}" for batch, share in shares.items())
                print(f"round {number + 1}/{options.rounds}: adapters / base, {shown}", flush=True)
                found.gaps_ms["none loads"] += await _gaps(llm, loras[:_NUM_ADAPTERS])
                loading = asyncio.create_task(_load_in_turns(llm, loras[_NUM_ADAPTERS:], found))
                found.gaps_ms["adapters load"] += await _gaps(llm, loras[:_NUM_ADAPTERS])
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)
    return found


def _new_adapter(directory: Path, number: int) -> LoRARequest:
    return LoRARequest(f"adapter-{number}", number, str(save_adapter(directory, number)))


async def _streams(llm: AsyncLLM, batch: int, num_steps: int, loras: list[LoRARequest]) -> list[OutputStream]:
    params = SamplingParams(
        max_tokens=num_steps, temperature=0.0, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
    )
    return [
        await llm.add_request(
            f"r{row}",
            [100 + row, *range(200, 216)],
            params,
            lora_request=loras[row % len(loras)] if loras else None,
        )
        for row in range(batch)
    ]


async def _decode(llm: AsyncLLM, batch: int, num_steps: int, loras: list[LoRARequest]) -> float:
    """Return tokens per second, measured from the time at which every request has its first tokens."""
    streams = await _streams(llm, batch, num_steps, loras)
    begun = await asyncio.gather(*(anext(stream) for stream in streams))
    num_begun = sum(len(output.outputs[0].token_ids) for output in begun)
    started = time.perf_counter()
    await asyncio.gather(*map(_drain, streams))
    return (batch * num_steps - num_begun) / (time.perf_counter() - started)


async def _drain(stream: OutputStream) -> None:
    async for _ in stream:
        pass


async def _gaps(llm: AsyncLLM, loras: list[LoRARequest]) -> list[float]:
    """Return the milliseconds between consecutive outputs of each of 32 streams, without the first output."""

    async def follow(stream: OutputStream) -> list[float]:
        times = [time.perf_counter() async for _ in stream][1:]
        return [1000 * (after - before) for before, after in pairwise(times)]

    streams = await _streams(llm, 32, 64, loras)
    return [gap for gaps in await asyncio.gather(*map(follow, streams)) for gap in gaps]


async def _load_in_turns(llm: AsyncLLM, loras: list[LoRARequest], found: Figures) -> None:
    while True:
        for lora in loras:
            await llm.engine_admin.load_lora(lora)
            await llm.engine_admin.unload_lora(lora.lora_int_id)
            found.num_loads += 1


def report_of(found: Figures) -> Section:
    """Return the report's section for these results."""
    section = Section("LoRA adapters of rank 16 on all linear layers, beside the base model")
    section.text(
        "SmolLM2-135M (Q4_1) on the CPU, all services in one process ([lora.py](lora.py)). At batch 32, eight adapters share "
        "the requests. While 32 streams run, other adapters are loaded and unloaded without a pause."
    )
    rows = []
    for batch, rates in found.rates.items():
        share = ratios(rates["adapters"], rates["base"])
        rows.append([str(batch), str(_CASES[batch][0]), spread(rates["base"]), spread(rates["adapters"]), spread(share, 2)])
    section.table(["batch", "adapters", "base, tokens/s", "adapters, tokens/s", "adapters / base"], rows)
    rows = [
        [name, f"{median(gaps):.1f}", f"{percentile(gaps, 0.99):.1f}", f"{percentile(gaps, 0.99) / median(gaps):.2f}"]
        for name, gaps in found.gaps_ms.items()
    ]
    section.table(["32 streams", "between tokens, median ms", "p99 ms", "p99 / median"], rows)
    section.text(f"Adapters loaded meanwhile: {found.num_loads}.")
    add_servers(section, found.servers)
    add_bars(section, _bars(found))
    return section


def _bars(found: Figures) -> list[Bar]:
    shares = {batch: median(ratios(rates["adapters"], rates["base"])) for batch, rates in found.rates.items()}
    loading = found.gaps_ms["adapters load"]
    tail = percentile(loading, 0.99) / median(loading)
    return [
        *(Bar(f"adapters / base at batch {batch}", _CASES[batch][1], share) for batch, share in shares.items()),
        Bar("p99 / median between tokens while adapters load", _MOST_TAIL, tail, at_most=True),
    ]


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("lora", __doc__)
    write_section("lora", report_of(measure(options)), options)


if __name__ == "__main__":
    main()
