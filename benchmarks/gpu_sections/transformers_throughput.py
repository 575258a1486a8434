"""Throughput of transformers' own continuous batching, with the same shape, card and data type."""

import time
from dataclasses import fields
from typing import Any

import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.model import load_transformers, random_source
from benchmarks.gpu_sections.plans import random_prompts
from benchmarks.gpu_sections.workload import Workload, compared

_WARM = Workload(8, 4)


def run(bench: Bench) -> Findings:
    """Measure the throughput at one size; bars.py compares it with Tetrad's."""
    findings = Findings("Output tokens/s of transformers' continuous batching")
    workload, size = compared(bench)
    source = random_source(bench)
    model = load_transformers(source, torch.bfloat16, bench.device, attention="sdpa")
    if not bench.is_gpu:
        findings.skip("transformers' continuous batching", "it needs a GPU")
        return findings
    _tokens_per_s(model, _WARM, size, source.config["vocab_size"])
    rate = _tokens_per_s(model, workload, size, source.config["vocab_size"])
    findings.found["transformers_short"] = rate
    findings.text(f"{workload.prompt_len} tokens in, {workload.output_len} out, greedy, bf16, its own choice of graphs.")
    findings.rows(["requests at a time", "tokens/s"], [[str(size), f"{rate:,.0f}"]])
    return findings


def _tokens_per_s(model: Any, workload: Workload, size: int, vocab_size: int) -> float:
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    known = {field.name for field in fields(ContinuousBatchingConfig)}
    # Flash attention would be downloaded.
    wanted = {"auto_switch_to_flash": False, "max_memory_percent": 0.5}
    prompts = [prompt.tolist() for prompt in random_prompts(size, workload.prompt_len, vocab_size)]
    # No id ends a request, because random weights would sometimes sample an end token.
    generation = GenerationConfig(max_new_tokens=workload.output_len, do_sample=False, eos_token_id=-1, pad_token_id=0)
    settings = ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in known})
    started = time.perf_counter()
    outputs = model.generate_batch(
        inputs=prompts, generation_config=generation, continuous_batching_config=settings, progress_bar=False
    )
    seconds = time.perf_counter() - started
    num_tokens = sum(len(output.generated_tokens) for output in outputs.values())
    assert num_tokens == size * workload.output_len, f"{num_tokens} tokens instead of {size * workload.output_len}"
    return num_tokens / seconds
