"""The same program over two carriers: all four services in this process and event loop, over gRPC and over the direct carrier.

`python -m benchmarks.carriers`. The difference is the cost of serialization, sockets and gRPC's thread. Over the direct
carrier, the split costs only making and reading each message. split_tax.py measures the split as it is served: four processes
against direct calls. CPU time is that of the whole process: on a busy machine it varies less than wall-clock time.
"""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from typing import NamedTuple

import uvloop

from benchmarks.figures import ratios, spread
from benchmarks.options import Options, read_options
from benchmarks.report import Section, write_section
from benchmarks.stack import MODEL
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.output_stream import OutputStream
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.services.log import configure_logging
from tetrad.services.rpc.carrier import GRPC
from tetrad.stack.one_process import OneProcessSettings, running

_CASES = {"sim": {1: 400, 16: 200, 64: 100}, "cpu": {1: 64, 16: 48}}
"""Device -> batch -> number of steps per round."""
_TITLES = {"sim": "simulated, steps take no time", "cpu": "SmolLM2, Q4_1"}
_CONTEXT = 17


class Step(NamedTuple):
    """The time of a decode step in microseconds: wall-clock time, and processor time."""

    wall_us: float
    cpu_us: float


Steps = dict[tuple[str, int], dict[str, list[Step]]]
"""(device, batch) -> carrier -> steps, round by round."""


def measure(options: Options) -> Steps:
    """Return the step times over each carrier; the carriers are measured alternately."""
    configure_logging("benchmark", level="warning", json=False)
    found: Steps = uvloop.run(_measure(options))
    return found


async def _measure(options: Options) -> Steps:
    devices = {name: cases for name, cases in _CASES.items() if not options.quick or name == "sim"}
    found: Steps = {(name, batch): {"grpc": [], "direct": []} for name, cases in devices.items() for batch in cases}
    for name, cases in devices.items():
        async with AsyncExitStack() as exits:
            directory = exits.enter_context(tempfile.TemporaryDirectory(prefix="t-", dir="/tmp"))
            llms = {
                "grpc": await exits.enter_async_context(running(_settings(name, f"unix:{directory}"), GRPC)),
                "direct": await exits.enter_async_context(running(_settings(name, "direct"), DirectCarrier())),
            }
            for llm in llms.values():
                await _decode(llm, 16, 16)
            for number in range(options.rounds):
                for batch, num_steps in cases.items():
                    for carrier, llm in llms.items():
                        found[name, batch][carrier].append(await _decode(llm, batch, num_steps))
                    last = ", ".join(f"{carrier} {steps[-1].wall_us:.0f} us" for carrier, steps in found[name, batch].items())
                    print(f"round {number + 1}/{options.rounds}: carriers, {name}, batch {batch}: {last}", flush=True)
    return found


def _settings(device: str, addresses: str) -> OneProcessSettings:
    return OneProcessSettings.of(MODEL, addresses, worker={"device": device}, engine_core={"num_gpu_blocks_override": 1024})


async def _decode(llm: AsyncLLM, batch: int, num_steps: int) -> Step:
    """Return the time of a decode step: run until every request has its first tokens, then measure until all have ended.

    The streams of the requests receive the text and the ids of each step.
    """
    params = SamplingParams(max_tokens=num_steps, temperature=0.0, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    prompts = [[100 + row, *range(200, 199 + _CONTEXT)] for row in range(batch)]
    streams = [await llm.add_request(f"r{row}", prompt, params) for row, prompt in enumerate(prompts)]
    begun = await asyncio.gather(*(anext(stream) for stream in streams))
    num_begun = sum(len(output.outputs[0].token_ids) for output in begun)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(_drain, streams))
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    # Requests that were ahead of others at the start of the measurement have fewer steps left, so a step is counted as `batch`
    # tokens.
    us = 1e6 * batch / (batch * num_steps - num_begun)
    return Step(wall_s * us, cpu_s * us)


async def _drain(stream: OutputStream) -> None:
    async for _ in stream:
        pass


def report_of(found: Steps) -> Section:
    """Return the report's section for these step times."""
    section = Section("The same program over gRPC and over the direct carrier: microseconds of a decode step")
    section.text(
        "Frontend, tokenizer, engine core and worker in one process and event loop ([carriers.py](carriers.py)), driven "
        "through AsyncLLM, text out. Over gRPC their messages go through Unix sockets; over the direct carrier by reference. "
        "CPU time is that of the whole process, in which one core does everything but the model's computation."
    )
    rows = []
    for (device, batch), carriers in found.items():
        cells = []
        for place in range(len(Step._fields)):
            grpc, direct = ([step[place] for step in carriers[name]] for name in ("grpc", "direct"))
            cells += [spread(grpc), spread(direct), spread(ratios(direct, grpc), 2)]
        rows.append([_TITLES[device], str(batch), *cells])
    head = ["", "batch", "clock, gRPC", "clock, direct", "direct / gRPC", "CPU, gRPC", "CPU, direct", "direct / gRPC"]
    section.table(head, rows)
    return section


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("carriers", __doc__)
    write_section("carriers", report_of(measure(options)), options)


if __name__ == "__main__":
    main()
