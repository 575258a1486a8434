"""Splits: compares the rates that `tetrad plan` computes for four GPUs with the simulated device at the same step times.

`python -m benchmarks.splits`. A model of the GPUs and their links (tetrad/cli/planning) computes the step times. The benchmark
measures the rest of the stack at these times: streams over HTTP, all on the same cores. Each engine of a split is a separate
engine core.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.figures import median, spread
from benchmarks.http_load import load
from benchmarks.options import Options, read_options
from benchmarks.report import Section, write_section
from benchmarks.stack import MODEL, PROMPT_LEN, running
from tetrad.cli.planning.forecast import Forecast, Rate, Workload, forecast
from tetrad.cli.planning.gpu_types import GPU_TYPES
from tetrad.cli.planning.number_types import WeightBytes
from tetrad.cli.planning.splits import Split
from tetrad.worker_svc.families.registry import read_config

_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151_936,
    "hidden_size": 5120,
    "intermediate_size": 25_600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
"""The config of Qwen3-32B."""
_SPLITS = (Split(1, 1, 1), Split(2, 1, 1), Split(4, 1, 1), Split(1, 4, 1), Split(1, 1, 4))
_GPUS = ("H100", "H100-PCIe")
_REQUESTS = 16
"""Requests per stage and engine: more ranks compute the same requests faster, more stages and engines compute more requests."""
_SECONDS = 6.0
"""Duration of a round in seconds."""


@dataclass
class Case:
    """A split over GPUs of one type: the computed rate, and the measured tokens/s, one value per round."""

    gpu: str
    expected: Forecast
    rate: Rate
    measured: list[float] = field(default_factory=list)


def cases() -> list[Case]:
    """Return the cases of all types of GPU and all splits, with the number of requests for each."""
    found = []
    for gpu in _GPUS:
        for split in _SPLITS:
            requests = _REQUESTS * split.pipeline * split.data
            work = Workload(1024, requests, 2048, 256, 0.95)
            plain = WeightBytes("bfloat16", 2.0)
            expected = forecast(read_config(_CONFIG), split, GPU_TYPES[gpu], work, weights=plain, cache_bytes=2)
            assert expected.many is not None, "32 billion parameters fit a card of 80 GB"
            found.append(Case(gpu, expected, expected.many))
    return found


def measure(found: Sequence[Case], options: Options) -> None:
    """Run every case on the simulated device with the computed step time."""
    for case in found:
        step, streams = case.rate.step_seconds, case.rate.num_requests
        flags = ("--device", "sim", "--data-parallel-size", str(case.expected.split.data))
        with running(*flags, environment={"TETRAD_WORKER_SIM_SECONDS_PER_STEP": str(step)}) as stack:
            for _ in range(options.rounds):
                num_tokens = max(32, round(_SECONDS / step))
                result = load(stack.url, MODEL, streams, num_requests=streams, max_tokens=num_tokens, prompt_len=PROMPT_LEN)
                case.measured.append(result.decode_tokens_per_s)
                print(f"{case.gpu:10} {case.expected.split!s:8} {case.measured[-1]:8.0f} tokens/s", flush=True)


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("splits", __doc__)
    found = cases()
    measure(found, options)
    section = Section("Splits of a model: expected, and measured on the simulated device")
    section.text(
        f"Qwen3-32B in bfloat16, {_REQUESTS} requests of 1,024 tokens for each stage and engine. Modelled: the time of a step "
        "by the GPUs' data sheets and their links. Measured: the stack's tokens/s with a simulated device that takes this time."
    )
    rows = []
    for case in found:
        one = next(each for each in found if each.gpu == case.gpu)
        rows.append(
            [
                case.gpu,
                str(case.expected.split),
                f"{case.rate.step_seconds * 1e3:.1f}",
                f"{case.rate.link_seconds * 1e3:.2f}",
                f"{case.rate.tokens_per_s:.0f}",
                spread(case.measured),
                f"{case.rate.tokens_per_s / one.rate.tokens_per_s:.2f}",
                f"{median(case.measured) / median(one.measured):.2f}",
            ]
        )
    head = ["GPUs", "split", "step ms", "of it links ms", "expected tokens/s", "measured tokens/s", "times one GPU", "measured"]
    section.table(head, rows)
    write_section("splits", section, options)


if __name__ == "__main__":
    main()
