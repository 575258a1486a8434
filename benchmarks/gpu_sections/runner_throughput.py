"""Throughput of the model runner alone, driven by the plans of plans.py."""

import time
from itertools import chain

import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings, last_line
from benchmarks.gpu_sections.model import load, make_runner, random_source
from benchmarks.gpu_sections.plans import Batch, random_prompts, run_plans
from benchmarks.gpu_sections.workload import Workload, compared, kinds, promised
from tetrad.services.errors import ModelError
from tetrad.worker_svc.cuda.runner import CudaModelRunner

_WARM = Workload(2, 2)


def run(bench: Bench) -> Findings:
    """Measure every form of the weights at every size."""
    findings = Findings("Output tokens/s of the model runner alone")
    workload, _ = promised(bench)
    rows: list[list[str]] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for kind, quantization in kinds(bench).items():
        try:
            rates = _rates(bench, quantization, findings)
        # This card or this version of torch has no such product; torch raises NotImplementedError.
        except (ModelError, NotImplementedError) as error:
            findings.skip(f"the runner alone with {kind} weights", last_line(error))
            continue
        curves[kind] = list(rates.items())
        rows += [[kind, str(size), f"{rate:,.0f}"] for size, rate in rates.items()]
    findings.text(f"{workload.prompt_len} tokens in, {workload.output_len} out, prompts included in the time.")
    findings.rows(["weights", "requests", "tokens/s"], rows)
    name = f"{bench.file_name}_runner_throughput"
    findings.curves(bench.options, name, "Tokens/s of the runner", curves, x="requests", y="output tokens/s")
    return findings


def _rates(bench: Bench, quantization: str, findings: Findings) -> dict[int, float]:
    loaded = load(bench, random_source(bench), torch.bfloat16 if bench.is_gpu else torch.float32, quantization)
    workload, sizes = promised(bench)
    short, short_size = compared(bench)
    runner = make_runner(bench, loaded, batch=max(sizes), length=workload.length + 1)
    vocab_size = loaded.model.config.vocab_size
    rates = {}
    for size in sizes:
        _tokens_per_s(runner, _WARM, size, vocab_size)
        rates[size] = _tokens_per_s(runner, workload, size, vocab_size)
        if not quantization:
            findings.found[f"runner_{size}"] = rates[size]
    if not quantization:
        findings.found["runner_short"] = _tokens_per_s(runner, short, short_size, vocab_size)
    return rates


def _tokens_per_s(runner: CudaModelRunner, workload: Workload, size: int, vocab_size: int) -> float:
    batch = Batch(random_prompts(size, workload.prompt_len, vocab_size))
    started = time.perf_counter()
    run_plans(runner, chain(batch.prefill_plans(), batch.decode_plans(workload.output_len - 1)))
    seconds = time.perf_counter() - started
    runner.forget_all()
    return size * workload.output_len / seconds
