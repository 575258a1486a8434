"""Measures the CUDA device: `python benchmarks/gpu.py` on a machine with a GPU takes less than nine minutes.

It runs from a checkout without an installation. Sections about kernels and models need torch, triton, transformers and numpy;
sections about the whole stack are left out if gRPC and other packages are not installed. Every section is a separate process
with a time limit, so that a section that fails, hangs or breaks its CUDA context does not affect the others. Results are
written after each section: benchmarks/results/<gpu>.md, with pictures beside it. The exit status is 1 if a section failed.

`--device host --quick` runs the same code with tiny shapes on the host, under Triton's interpreter; its times mean nothing.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Replaces the folder of this file, whose modules must not be importable as top-level names.
sys.path[0] = str(ROOT)

SECTIONS = {
    "facts": 20,
    "launch_cost": 15,
    "kernel_parity": 70,
    "model_parity": 100,
    "synchronisation": 40,
    "kernel_rates": 60,
    "decode_steps": 60,
    "step_profile": 40,
    "runner_throughput": 60,
    "stack_throughput": 130,
    "transformers_throughput": 60,
}
"""The sections in their order, with their time limits in seconds. All sections together end within processes.TOTAL_S."""

UNTIMED = ("kernel_parity", "model_parity", "synchronisation")
"""Sections that check results, and measure no times."""

LIMITS_S = {**SECTIONS, "tune": 480}
"""The limits of these sections, and of a section that runs only on request."""


def main() -> int:
    """Run the requested sections and return the exit status."""
    args = _parse()
    if args.device == "host":
        # Triton reads this variable once, when it is first imported.
        os.environ["TRITON_INTERPRET"] = "1"
    from benchmarks.gpu_sections.processes import run_all, run_one
    from benchmarks.gpu_sections.results import Results

    if args.answer is not None:
        return run_one(args.only[0], LIMITS_S[args.only[0]], args)
    # A run of some sections does not overwrite the page of a whole run.
    suffix = "" if args.only == list(SECTIONS) else "-" + "-".join(args.only)
    return run_all({name: LIMITS_S[name] for name in args.only}, args, Results(args.out, args.only, suffix), UNTIMED)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda", help="host: interpreted, to see that it works")
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--only", nargs="+", choices=LIMITS_S, default=list(SECTIONS), help="these sections")
    parser.add_argument("--tune", dest="only", action="store_const", const=["tune"], help="measure launch parameters instead")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="directory of <gpu>.md and plots/")
    parser.add_argument("--weights", type=Path, help="for parity: .gguf or a directory; default: SmolLM2 if cached")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)  # file that the process of a section writes
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
