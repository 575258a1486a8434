"""Throughput of the whole stack: clients on the same machine call `tetrad serve` over streamed HTTP.

The stack has four services over gRPC, and processes text. On the host it uses the simulated device: such a run only checks the
script.
"""

import importlib.util
import tempfile
from pathlib import Path

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.model import QWEN, TINY
from benchmarks.gpu_sections.model_directory import write_model
from benchmarks.gpu_sections.plans import random_prompts
from benchmarks.gpu_sections.workload import Workload, compared, kinds, promised
from tetrad.worker_svc.core.host import usable_cores

_NEEDED = ("grpc", "grpc_status", "google.rpc", "structlog", "pydantic_settings", "fastapi", "uvicorn", "llguidance", "uvloop")
_WAVES = 2
"""Number of requests of each stream, one after another."""
_LEAST_S = 45.0
"""Least remaining time, in seconds, for starting and measuring one stack."""


def run(bench: Bench) -> Findings:
    """Measure every form of the weights at every size, if the stack's packages are installed."""
    findings = Findings("Output tokens/s of the whole stack")
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        findings.skip("the whole stack", f"not installed: {', '.join(missing)}")
        return findings
    workload, _ = promised(bench)
    rows: list[list[str]] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="tetrad-model-") as directory:
        write_model(Path(directory), bench.pick(QWEN, TINY))
        for kind, quantization in kinds(bench).items():
            if bench.remaining_s < _LEAST_S:
                findings.skip(f"the whole stack with {kind} weights", "the section's time was over")
                continue
            rates = _rates(bench, directory, quantization, findings)
            curves[kind] = list(rates.items())
            rows += [[kind, str(size), f"{rate:,.0f}"] for size, rate in rates.items()]
    findings.text(
        f"{workload.prompt_len} tokens in, {workload.output_len} out, random; {_WAVES} requests a stream, as many streams as "
        f"requests may run at a time; from the first request to the last answer. Number of frontends: {_num_frontends()}."
    )
    findings.rows(["weights", "requests at a time", "tokens/s"], rows)
    name = f"{bench.file_name}_stack_throughput"
    findings.curves(bench.options, name, "Tokens/s of the stack", curves, x="requests at a time", y="output tokens/s")
    return findings


def _rates(bench: Bench, directory: str, quantization: str, findings: Findings) -> dict[int, float]:
    # Imported here, because these modules need packages that may not be installed.
    from benchmarks.stack import running

    workload, sizes = promised(bench)
    vocab_size = bench.pick(QWEN, TINY)["vocab_size"]
    prefix = f"engine_{quantization}_" if quantization else "engine_"
    with running(*_flags(bench, workload, max(sizes), quantization), model=directory) as stack:
        print(f"    ready after {stack.start_s:.1f} s", flush=True)
        rates = {size: _tokens_per_s(stack.url, size, workload, vocab_size) for size in sizes}
        if not quantization:
            short, size = compared(bench)
            findings.found["stack_short"] = _tokens_per_s(stack.url, size, short, vocab_size)
    findings.found |= {f"{prefix}{size}": rate for size, rate in rates.items()}
    return rates


def _tokens_per_s(url: str, size: int, workload: Workload, vocab_size: int) -> float:
    from benchmarks.http_load import load
    from benchmarks.stack import MODEL

    prompts = [prompt.tolist() for prompt in random_prompts((_WAVES + 1) * size, workload.prompt_len, vocab_size)]
    load(url, MODEL, size, num_requests=size, max_tokens=2, prompts=prompts[:size])
    # New prompts, which no prefix cache has.
    new = prompts[size:]
    result = load(url, MODEL, size, num_requests=len(new), max_tokens=workload.output_len, prompts=new)
    print(f"    {result.summary()}", flush=True)
    return result.tokens_per_s


def _flags(bench: Bench, workload: Workload, most: int, quantization: str) -> list[str]:
    device = ["--device", "cuda", "--dtype", "bfloat16"] if bench.is_gpu else ["--device", "sim"]
    limits = ["--max-num-seqs", str(most), "--max-model-len", str(workload.length + 16)]
    frontends = ["--api-server-count", str(_num_frontends())]
    quantized = ["--quantization", quantization] if quantization else []
    return [*device, "--load-format", "dummy", *limits, *frontends, *quantized]


def _num_frontends() -> int:
    """Return a frontend for every four cores, at most four: one alone sends about 35,000 tokens a second."""
    return max(1, min(4, usable_cores() // 4))


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
