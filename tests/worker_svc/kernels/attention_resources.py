"""Prints the resources of each row of attention_launch.json, without a GPU: `python attention_resources.py 90`.

For editors of the table: registers and spilled bytes of a thread, shared memory of a program, and the number of Hopper's
tensor core instructions (wgmma) and of the general ones (mma). A spill, or more shared memory than the row allows, is slow or
does not start.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from compile_all import ATTENTION, MERGE, compiled_for
from triton.backends.compiler import GPUTarget

from tetrad.worker_svc.kernels import attention_launch
from tetrad.worker_svc.kernels.decode_attention import decode_attention_kernel
from tetrad.worker_svc.kernels.prefill_attention import prefill_attention_kernel

_PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"


def main() -> None:
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    limit = attention_launch.shared_kib_of(divmod(target.arch, 10))
    sys.stdout.write("kernel, bytes, dim, rows, keys, warps, stages: registers, spilled, shared KiB, wgmma, mma\n")
    for row in json.loads(Path(attention_launch.__file__).with_suffix(".json").read_text()):
        if row["shared_kib"] <= limit:
            shape = [row[name] for name in ("value_bytes", "head_dim", "block_rows", "block_keys", "num_warps", "num_stages")]
            sys.stdout.write(f"{row['kernel']} {shape}: {resources(target, row)}\n")


def resources(target: GPUTarget, row: dict[str, Any]) -> list[int]:
    """Return a row's numbers, in the order of the headline."""
    kernel = {"prefill": prefill_attention_kernel, "decode": decode_attention_kernel}[row["kernel"]]
    wide = row["value_bytes"] == 4
    fp8 = "fp8e4nv" if target.arch >= 89 else "fp8e5"
    cache = {1: fp8, 2: "bf16", 4: "fp32"}[row["value_bytes"]]
    values = ATTENTION | {"HEAD_DIM": row["head_dim"], "BLOCK_DIM": row["head_dim"], "PRECISION": "ieee" if wide else "tf32"}
    values |= {"BLOCK_ROWS": row["block_rows"], "BLOCK_KEYS": row["block_keys"]}
    values |= MERGE if row["kernel"] == "decode" else {"HAS_WINDOW": False, "HAS_ENDS": False}
    options = {"num_warps": row["num_warps"], "num_stages": row["num_stages"], "maxnreg": row["max_registers"]}
    compiled = compiled_for(target, kernel, "fp32" if wide else "bf16", cache, values, options)
    ptx = compiled.asm["ptx"]
    registers, spilled = (int(number) for number in assembled(ptx))
    return [registers, spilled, compiled.metadata.shared // 1024, ptx.count("wgmma.mma_async"), ptx.count("mma.sync")]


def assembled(ptx: str) -> tuple[str, str]:
    """Return the registers and the spilled bytes that the assembler reports."""
    [architecture] = re.findall(r"\.target (\w+)", ptx)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        call = [str(_PTXAS), "-v", f"--gpu-name={architecture}", file.name, "-o", "/dev/null"]
        told = subprocess.run(call, capture_output=True, text=True, check=True).stderr
    return re.findall(r"Used (\d+) registers", told)[0], re.findall(r"(\d+) bytes spill stores", told)[0]


if __name__ == "__main__":
    main()
