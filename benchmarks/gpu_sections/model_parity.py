"""Model parity: compares the runner with transformers in float32 on the same weights, with and without graphs.

The weights are random, in the measured shape, in bf16 and in float32; and those of SmolLM2 or of the model of `--weights`, if
present. Random weights have flat distributions, on which rounding has the largest effect.
"""

from pathlib import Path

import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings, last_line
from benchmarks.gpu_sections.model import Loaded, load, load_transformers, make_runner, random_source
from benchmarks.gpu_sections.plans import Batch, random_prompts, run_plans
from benchmarks.gpu_sections.reference import Generated, generated, judge
from tetrad.worker_svc.checkpoint.open import open_source
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.core.plan import Ints, SamplingSpec

_LIMIT = 1e-4
"""The allowed error of log-probabilities in float32, and the allowed distance between the chosen and the most likely token."""
_PEER_SHARE = 1.25
"""The same in bfloat16, as a multiple of the error of transformers in bfloat16, which rounds at as many places."""
_LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 64, 65, 100, 127, 128, 255, 256, 300, 511, 512, 700, 1000, 1533, 2000)
"""Lengths of 24 prompts, with 7,680 tokens.

The batch, and all steps of up to 1,024 tokens, have a graph of exactly their size, so graphs and launches give the same bits.
"""
_GREEDY = SamplingSpec(temperature=0.0, num_logprobs=0)


def run(bench: Bench) -> Findings:
    """Compare every model in every data type."""
    findings = Findings("The model against transformers in float32")
    sources: dict[str, WeightSource] = {bench.pick("Qwen2.5-1.5B shape, random", "tiny, random"): random_source(bench)}
    path = _weights_path(bench)
    if path is None:
        findings.skip("model parity of SmolLM2", "its weights are not here (--weights PATH)")
    else:
        try:
            sources[path.stem] = open_source(path)
        except ImportError as error:
            findings.skip(f"model parity of {path.stem}", str(error))
    dtypes = (torch.bfloat16, torch.float32) if bench.is_gpu else (torch.float32,)
    rows = []
    for name, source, dtype in [(name, source, dtype) for name, source in sources.items() for dtype in dtypes]:
        try:
            rows.append([name, *_compare(bench, name, source, dtype, findings)])
        except Exception as error:  # noqa: BLE001 - any failure of a dtype is reported, and the next dtype is checked
            findings.check(False, f"{name} in {dtype}: {last_line(error)}")
    findings.text(
        "24 prompts of 1 to 2,000 tokens, 16 greedy outputs each. Each output is judged behind those before it: it is the "
        "reference's choice, or its log-probability there is within the limit of that; log-probabilities agree within it. In "
        f"bfloat16 the limit is {_PEER_SHARE:g} times the error of transformers in bfloat16."
    )
    findings.rows(
        ["model", "type", "outputs", "other choices", "gap", "logprob error", "limit", "graphs change", "holds"], rows
    )
    return findings


def _compare(bench: Bench, name: str, source: WeightSource, dtype: torch.dtype, findings: Findings) -> list[str]:
    loaded = load(bench, source, dtype)
    lengths, num_tokens, most = bench.pick((_LENGTHS, 16, 1024), ((1, 4), 2, 5))
    vocab_size = loaded.model.config.vocab_size
    prompts = [random_prompts(1, length, vocab_size, seed=length)[0] for length in lengths]
    found = _generate(bench, loaded, prompts, num_tokens, most, use_graphs=True)
    eager = _generate(bench, loaded, prompts, num_tokens, most, use_graphs=False)
    num_changed = sum(a != b for a, b in zip(found.logprobs, eager.logprobs, strict=True))
    del loaded
    reference = load_transformers(source, torch.float32, bench.device, weights_dtype=dtype)
    peer = None if dtype == torch.float32 else load_transformers(source, dtype, bench.device, weights_dtype=dtype)
    judged = judge(reference, prompts, found, peer)
    limit, kind = _LIMIT if peer is None else _PEER_SHARE * judged.peer_error, str(dtype).removeprefix("torch.")
    problems = {
        f"an output is {judged.worst_gap:.3g} behind the reference's choice": judged.worst_gap > limit,
        f"a log-probability is off by {judged.worst_error:.3g}": not judged.worst_error <= limit,
        f"graphs change the outputs of {num_changed} prompts": num_changed > 0,
    }
    for problem, is_there in problems.items():
        findings.check(not is_there, f"{name} in {kind}: {problem}")
    figures = [f"{judged.worst_gap:.1e}", f"{judged.worst_error:.1e}", f"{limit:.1e}"]
    return [
        kind,
        str(judged.num_tokens),
        str(judged.num_other),
        *figures,
        str(num_changed),
        "NO" if any(problems.values()) else "yes",
    ]


def _generate(bench: Bench, loaded: Loaded, prompts: list[Ints], num_tokens: int, most: int, *, use_graphs: bool) -> Generated:
    length = max(map(len, prompts)) + num_tokens + 1
    runner = make_runner(bench, loaded, batch=len(prompts), length=length, max_num_batched_tokens=most, use_graphs=use_graphs)
    batch = Batch(prompts, _GREEDY, max_num_batched_tokens=most)
    results = run_plans(runner, [*batch.prefill_plans()]) + run_plans(runner, batch.decode_plans(num_tokens - 1))
    return generated(results, len(prompts))


def _weights_path(bench: Bench) -> Path | None:
    """Return the file or directory of `--weights`, else SmolLM2 in the cache; None if it is not there or in a quick run."""
    if bench.options.quick:
        return None
    cached = Path.home() / ".cache/tetrad/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"
    return bench.weights or (cached if cached.exists() else None)
