"""The device's share: the share of the time in which the device computes while streams are served over HTTP.

`python -m benchmarks.device_share`. The simulated device takes a fixed time for each step, so tokens/s x step time / streams is
the share of the time in which it computed a step; in the rest it waited for a plan. Only the time in which all streams decode
is measured.
"""

from collections.abc import Mapping

from benchmarks.figures import median, spread
from benchmarks.http_load import load
from benchmarks.options import Options, read_options
from benchmarks.processes import CLIENT, SUPERVISOR, CpuMeter, ProcessTree
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL, PROMPT_LEN, running

_STEPS_MS = (0.7, 2.0, 5.0)
_STREAMS = (1, 16, 64)
_SECONDS = 3.0
"""Device time of a round; it determines the number of steps of each stream."""
_BARS: Mapping[float, tuple[float, ...]] = {0.7: (0.88,), 2.0: (0.96, 0.96, 0.93), 5.0: (0.98, 0.98, 0.97)}
"""Milliseconds of a step -> the required least share for each number of streams."""
_CPU_ORDER = ("frontend", "tokenizer", "engine core", "worker", SUPERVISOR, CLIENT)


class Case:
    """The results for a step time and a number of streams: the device's share and CPU time per step, one value per round."""

    def __init__(self, step_ms: float, num_streams: int) -> None:
        self.step_ms, self.num_streams = step_ms, num_streams
        self.shares: list[float] = []
        self.cpu_us: dict[str, list[float]] = {}  # per step, by service

    @property
    def gap_us(self) -> float:
        """Microseconds between two steps, computed from the median share."""
        return 1e3 * self.step_ms * (1 / median(self.shares) - 1)

    def measure(self, url: str, tree: ProcessTree) -> None:
        """Measure one round and add its results."""
        num_steps = round(_SECONDS / (self.step_ms / 1e3))
        meter = CpuMeter(tree)
        streams = self.num_streams
        result = load(url, MODEL, streams, num_requests=streams, max_tokens=num_steps, prompt_len=PROMPT_LEN)
        for service, seconds in meter.read().items():
            self.cpu_us.setdefault(service, []).append(1e6 * seconds / num_steps)
        self.shares.append(result.decode_tokens_per_s * self.step_ms / 1e3 / streams)
        print(f"{self.step_ms:3} ms, {streams:2} streams: share {self.shares[-1]:.3f}", flush=True)


def measure(options: Options) -> list[Case]:
    """Return all cases; every round measures each of them."""
    found = []
    for step_ms in _STEPS_MS:
        cases = [Case(step_ms, streams) for streams in _STREAMS]
        variables = {"TETRAD_WORKER_SIM_SECONDS_PER_STEP": str(step_ms / 1e3)}
        with running("--device", "sim", "--max-model-len", "8192", environment=variables) as stack:
            tree = ProcessTree(stack.pid)
            load(stack.url, MODEL, max(_STREAMS), num_requests=max(_STREAMS), max_tokens=64, prompt_len=PROMPT_LEN)
            for _ in range(options.rounds):
                for case in cases:
                    case.measure(stack.url, tree)
        found += cases
    return found


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("device_share", __doc__)
    cases = measure(options)
    section = Section("The device's share: how long a simulated device computes")
    section.text(
        "Streamed completions over HTTP, all on the same cores as the load generator; a step takes the same time whatever is "
        "in it. Share: tokens/s x step time / streams, while all streams decode. Gap: from one step's end to the next begin."
    )
    rows = [
        [f"{case.step_ms:g}", str(case.num_streams), spread(case.shares, 3), f"{case.gap_us:.0f}",
         *(f"{median(case.cpu_us[each]):.0f}" for each in _CPU_ORDER)]
        for case in cases
    ]  # fmt: skip
    section.table(["step ms", "streams", "share", "gap us", *(f"{each}, CPU us a step" for each in _CPU_ORDER)], rows)
    bars = [
        Bar(f"share of the device, {case.step_ms:g} ms, {case.num_streams} streams", least, median(case.shares))
        for case in cases
        for streams, least in zip(_STREAMS, _BARS[case.step_ms], strict=False)
        if streams == case.num_streams
    ]
    add_bars(section, bars)
    write_section("device_share", section, options)


if __name__ == "__main__":
    main()
