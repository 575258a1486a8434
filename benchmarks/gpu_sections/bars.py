"""Bars: the target figures for one H200 with a model of Qwen2.5-1.5B's shape, in bf16 by default.

Sections report figures by these names. A target without a figure was not measured.
"""

from collections.abc import Mapping

from benchmarks.report import BARS_HEAD, Bar, Section

BARS = {
    "decode_1": ("decode step, batch 1, context 1,000: times the floor", 1.35, True, ""),
    "decode_128": ("decode step, batch 128, context 1,000: times the larger floor", 1.5, True, ""),
    "engine_1": ("whole stack, 128 / 1,024 in/out, max_num_seqs 1", 1_000, False, " tokens/s"),
    "engine_8": ("whole stack, max_num_seqs 8", 8_000, False, " tokens/s"),
    "engine_32": ("whole stack, max_num_seqs 32", 25_000, False, " tokens/s"),
    "engine_128": ("whole stack, max_num_seqs 128", 60_000, False, " tokens/s"),
    "engine_fp8_1": ("published for vLLM, met with fp8 weights, max_num_seqs 1", 2_000, False, " tokens/s"),
    "engine_fp8_8": ("the same, max_num_seqs 8", 12_000, False, " tokens/s"),
    "engine_fp8_32": ("the same, max_num_seqs 32", 35_000, False, " tokens/s"),
    "engine_fp8_128": ("the same, max_num_seqs 128", 60_000, False, " tokens/s"),
    "prefill_attention": ("attention prefill, 8,192 tokens, head dim 128: share of the GEMM rate", 0.55, False, ""),
    "transformers": (
        "times the tokens/s of transformers' continuous batching: the stack, else the runner",
        3.0,
        False,
        "",
    ),
    "stack_share": ("stack over gRPC: share of the model runner alone, batch 32", 0.95, False, ""),
}
"""Name -> (description, limit, whether the limit is an upper limit, unit)."""


def add_table(section: Section, figures: Mapping[str, float]) -> None:
    """Add the table of bars with the measured values."""
    found = {**figures, **_ratios(figures)}
    rows = []
    for name, (what, limit, at_most, unit) in BARS.items():
        row = Bar(what, limit, found.get(name, 0.0), at_most=at_most, unit=unit).row()
        rows.append(row if name in found else (*row[:2], "not measured", "-"))
    section.table(BARS_HEAD, rows)


def _ratios(found: Mapping[str, float]) -> dict[str, float]:
    """Return the ratios of figures of several sections."""
    ratios = {}
    if "engine_32" in found and "runner_32" in found:
        ratios["stack_share"] = found["engine_32"] / found["runner_32"]
    ours = found.get("stack_short", found.get("runner_short"))
    if ours is not None and "transformers_short" in found:
        ratios["transformers"] = ours / found["transformers_short"]
    return ratios
