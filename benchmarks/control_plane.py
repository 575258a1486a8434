"""The control plane: the cost of everything but the model, at growing concurrency, over streamed HTTP, including the client.

`python -m benchmarks.control_plane`. Two loads of 32 input tokens and 128 output tokens: the simulated device at zero step
time, with the CPU time of each service per output token; and a model of one layer, with Tetrad and vLLM measured alternately,
with prompts of token ids and of text.
"""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.figures import median, ratios, spread
from benchmarks.http_load import LoadResult, load
from benchmarks.options import Options, read_options
from benchmarks.peers.installed import TINY, VLLM, home, is_installed
from benchmarks.peers.vllm_server import vllm_server
from benchmarks.plots import distributions, lines
from benchmarks.processes import CLIENT, SUPERVISOR, CpuMeter, ProcessTree
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL, PROMPT_LEN, running

_MAX_TOKENS = 128
_SIM_REQUESTS = {1: 4, 16: 64, 64: 192, 256: 512}
"""Concurrency -> number of requests per round."""
_TINY_REQUESTS = {1: 6, 16: 48, 64: 128}
_KINDS = {"token ids": False, "text": True}
"""Kind of prompt -> whether it is text."""
_TETRAD = "Tetrad"
_NUM_FRONTENDS = (1, 2)
_CPU_ORDER = ("frontend", "tokenizer", "engine core", "worker", SUPERVISOR, CLIENT)


@dataclass
class Runs:
    """The results of one system at one concurrency, one value per round. Times are in seconds."""

    tokens_per_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)  # median of each round
    tpot_s: list[float] = field(default_factory=list)
    all_ttft_s: list[float] = field(default_factory=list)
    all_gaps_s: list[float] = field(default_factory=list)
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by service, per output token

    def add(self, result: LoadResult, cpu_seconds: Mapping[str, float]) -> None:
        """Add the results of a round."""
        self.tokens_per_s.append(result.tokens_per_s)
        self.ttft_s.append(median(result.ttft_s))
        self.tpot_s.append(median(result.tpot_s))
        self.all_ttft_s += result.ttft_s
        self.all_gaps_s += result.gaps_s
        for service, seconds in cpu_seconds.items():
            self.cpu_us[service].append(1e6 * seconds / result.num_tokens)


Found = dict[str, dict[int, Runs]]
"""System -> concurrency -> runs."""


def measure(
    systems: Mapping[str, tuple[str, ProcessTree]], sizes: Mapping[int, int], rounds: int, *, as_text: bool = False
) -> Found:
    """Return the results of the systems, which are measured alternately, with prompts of ids or of text.

    `systems` gives the URL and the processes of each.
    """
    found = {name: {concurrency: Runs() for concurrency in sizes} for name in systems}
    for url, _ in systems.values():
        for concurrency in sizes:
            load(url, MODEL, concurrency, num_requests=concurrency, max_tokens=16, prompt_len=PROMPT_LEN, as_text=as_text)
    for _ in range(rounds):
        for concurrency, num_requests in sizes.items():
            for name, (url, tree) in systems.items():
                meter = CpuMeter(tree)
                result = load(
                    url, MODEL, concurrency, num_requests=num_requests, max_tokens=_MAX_TOKENS,
                    prompt_len=PROMPT_LEN, as_text=as_text,
                )  # fmt: skip
                found[name][concurrency].add(result, meter.read())
                print(f"{name:12} {result.summary()}", flush=True)
    return found


def simulated(options: Options) -> dict[int, dict[int, Runs]]:
    """Measure the stack over the simulated device; return the results by number of frontends."""
    sizes = {concurrency: n // 2 if options.quick and n > concurrency else n for concurrency, n in _SIM_REQUESTS.items()}
    with ExitStack() as exits:
        stacks = [
            exits.enter_context(running("--device", "sim", "--api-server-count", str(number))) for number in _NUM_FRONTENDS
        ]
        names = {number: f"{number} frontend{'s' if number > 1 else ''}" for number in _NUM_FRONTENDS}
        systems = {
            names[number]: (each.url, ProcessTree(each.pid)) for number, each in zip(_NUM_FRONTENDS, stacks, strict=True)
        }
        found = measure(systems, sizes, options.rounds)
    return {number: found[name] for number, name in names.items()}


def one_layer(options: Options) -> dict[str, Found]:
    """Measure the model of one layer in Tetrad and in vLLM, by kind of prompt; empty if vLLM is not installed."""
    if not (options.with_peers and is_installed(VLLM)):
        return {}
    with ExitStack() as exits:
        ours = exits.enter_context(running("--device", "cpu", "--dtype", "float32", model=str(home() / TINY)))
        theirs = exits.enter_context(vllm_server(TINY))
        systems = {_TETRAD: (ours.url, ProcessTree(ours.pid)), VLLM: (theirs.url, ProcessTree(theirs.pid, "server"))}
        return {kind: measure(systems, _TINY_REQUESTS, options.rounds, as_text=as_text) for kind, as_text in _KINDS.items()}


def _report_simulated(section: Section, by_frontends: Mapping[int, Mapping[int, Runs]], options: Options) -> list[Bar]:
    section.text("### The simulated device at zero step time")
    all_runs = [(number, concurrency, runs) for number, sim in by_frontends.items() for concurrency, runs in sim.items()]
    rows = [
        [str(number), str(concurrency), spread(runs.tokens_per_s), spread(_ms(runs.ttft_s), 1), spread(_ms(runs.tpot_s), 2)]
        for number, concurrency, runs in all_runs
    ]
    section.table(["frontends", "concurrency", "output tokens/s", "TTFT ms", "TPOT ms"], rows)
    section.text("CPU microseconds per output token (clock ticks of 10 ms over the run; idle services count as well):")
    rows = [
        [
            str(number),
            str(concurrency),
            *(f"{median(runs.cpu_us[each]):.1f}" for each in _CPU_ORDER),
            f"{_total_cpu_us(runs):.1f}",
        ]
        for number, concurrency, runs in all_runs
    ]
    section.table(["frontends", "concurrency", *_CPU_ORDER, "in all"], rows)
    sim = by_frontends[1]
    points = {
        f"simulated device, frontends: {number}": [(each, median(runs.tokens_per_s)) for each, runs in found.items()]
        for number, found in by_frontends.items()
    }
    name = lines(options, "control_plane_sim.png", points, x="concurrency", y="output tokens/s", log_x=True)
    section.plot(name, "Output tokens/s by concurrency, simulated device")
    most = max(sim)
    return [Bar(f"simulated device, {most} concurrent: tokens/s", 8000, median(sim[most].tokens_per_s))]


def _report_one_layer(section: Section, tiny: Mapping[str, Found], options: Options) -> list[Bar]:
    section.text(f"### A model of one layer, hidden size 64, 49,152 tokens: against {VLLM} (float32, eager)")
    bars = []
    for kind, found in tiny.items():
        section.text(f"Prompts of {kind}:")
        bars += _compare(section, kind, found)
    points = {
        f"{name}, {kind}": [(each, median(runs.tokens_per_s)) for each, runs in by.items()]
        for kind, found in tiny.items()
        for name, by in found.items()
    }
    name = lines(options, "control_plane.png", points, x="concurrency", y="output tokens/s", log_x=True)
    section.plot(name, "Output tokens/s by concurrency, one layer")
    for kind, found in tiny.items():
        all_runs = {f"{name}, {each}": runs for name, by in found.items() for each, runs in by.items()}
        for file_name, x, series in (
            ("control_plane_ttft", "time to first token, ms", {name: runs.all_ttft_s for name, runs in all_runs.items()}),
            ("control_plane_itl", "time between chunks, ms", {name: runs.all_gaps_s for name, runs in all_runs.items()}),
        ):
            in_ms = {name: _ms(values) for name, values in series.items()}
            plot = distributions(options, f"{file_name}_{kind.replace(' ', '_')}.png", in_ms, x=x)
            section.plot(plot, f"Distribution with prompts of {kind}: {x}")
    return bars


def _compare(section: Section, kind: str, found: Found) -> list[Bar]:
    ours, theirs = found[_TETRAD], found[VLLM]
    bars, rows = [], []
    for concurrency, mine in ours.items():
        other = theirs[concurrency]
        faster, sooner = ratios(mine.tokens_per_s, other.tokens_per_s), ratios(mine.ttft_s, other.ttft_s)
        for what, left, right, ratio, digits in (
            ("output tokens/s", mine.tokens_per_s, other.tokens_per_s, faster, 0),
            ("TTFT ms", _ms(mine.ttft_s), _ms(other.ttft_s), sooner, 1),
            ("TPOT ms", _ms(mine.tpot_s), _ms(other.tpot_s), ratios(mine.tpot_s, other.tpot_s), 2),
        ):
            rows.append([str(concurrency), what, spread(left, digits), spread(right, digits), f"{median(ratio):.2f}"])
        cpu = _total_cpu_us(mine), _total_cpu_us(other)
        rows.append(
            [str(concurrency), "CPU us per token, client included", *(f"{each:.0f}" for each in cpu), f"{cpu[0] / cpu[1]:.2f}"]
        )
        case = f"one layer, {kind}, {concurrency} concurrent"
        bars.append(Bar(f"{case}: tokens/s against vLLM", 2.0, median(faster)))
        bars.append(Bar(f"{case}: TTFT against vLLM", 0.5, median(sooner), at_most=True))
    section.table(["concurrency", "", _TETRAD, VLLM, "ratio"], rows)
    return bars


def _total_cpu_us(runs: Runs) -> float:
    return sum(median(each) for each in runs.cpu_us.values())


def _ms(seconds: list[float]) -> list[float]:
    return [1e3 * each for each in seconds]


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("control_plane", __doc__)
    sim, tiny = simulated(options), one_layer(options)
    section = Section("The control plane: everything but the model")
    section.text(
        f"{PROMPT_LEN} random tokens in, {_MAX_TOKENS} out, `ignore_eos`, streamed over HTTP, all on the same cores as the "
        "load generator ([http_load.py](http_load.py)). TTFT is from the connection to the first chunk, medians of rounds."
    )
    bars = _report_simulated(section, sim, options)
    if tiny:
        bars += _report_one_layer(section, tiny, options)
    add_bars(section, bars)
    write_section("control_plane", section, options)


if __name__ == "__main__":
    main()
