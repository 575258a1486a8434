"""Request costs: the cost of sampling parameters in the worker and of constraints over HTTP, against plain requests.

`python -m benchmarks.request_costs`. Parameters: sampler_cost.py; JSON schemas of 2 KB: structured_outputs.py.
"""

import os

from benchmarks.options import read_options
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.sampler_cost import measure as measure_sampling
from benchmarks.sampler_cost import mixed, plain
from benchmarks.stack import serving
from benchmarks.structured_outputs import measure as measure_constraints

_STEPS_PER_ROUND = 12
_BATCH = 16


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("request_costs", __doc__)
    num_steps = _STEPS_PER_ROUND * options.rounds
    without, varied = measure_sampling([plain, mixed], num_steps=num_steps, num_threads=len(os.sched_getaffinity(0)))
    with serving("--device", "cpu") as url:
        found = measure_constraints(url, batch=_BATCH, max_tokens=64, rounds=min(options.rounds, 3))
    section = Section("What a request may ask for: SmolLM2 on the CPU, milliseconds")
    section.text(
        "Parameters against plain temperature, in the worker ([sampler_cost.py](sampler_cost.py)); constraints against plain "
        "requests, over HTTP ([structured_outputs.py](structured_outputs.py))."
    )
    ways = (
        ("decode step of 64 rows: 64 different parameter sets with 5 logprobs", without.step, varied.step),
        (f"time per token at batch {_BATCH}: JSON schemas of 2 KB", found["plain"], found["constrained"]),
        ("time to the first token: a JSON schema of 2 KB, never seen", found["plain_first"], found["new_first"]),
        ("time to the first token: a JSON schema of 2 KB, seen before", found["plain_first"], found["known_first"]),
    )
    rows = [[title, f"{base:.1f}", f"{asked:.1f}", f"{asked / base:.2f}"] for title, base, asked in ways]
    section.table(["", "plain", "asked for", "ratio"], rows)
    add_bars(section, [Bar("time per token with a schema", 1.25, found["constrained"] / found["plain"], at_most=True)])
    write_section("request_costs", section, options)


if __name__ == "__main__":
    main()
