"""Tokens per second of one rank, two shards and two stages, on SmolLM2's shape with 8 heads: `python -m benchmarks.ranks`.

Weights are random: load_format "dummy". Shards and stages are compared with one rank that runs the same program. All cases of
a program are loaded at the same time and measured in turns.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import median, spread
from tetrad import LLM, SamplingParams
from tetrad.inputs import TokensPrompt

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "eos_token_id": 0,
}
NUM_TOKENS = {1: 100, 32: 20}
"""Tokens of each request, by the number of requests."""
NUM_ROUNDS = 8
PROGRAMS = ("torch", "native")
CASES = ((1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1))
"""Cases: number of shards, number of stages, threads of each rank."""


def main() -> None:
    """Print a line for each program, number of requests and case. Arguments select the programs: torch, native."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "config.json").write_text(json.dumps(CONFIG))
        for program in PROGRAMS:
            if program in (sys.argv[1:] or PROGRAMS):
                # Shards of the torch program exchange everything over gloo, because they do not use the native kernels.
                os.environ["TETRAD_WORKER_CPU_KERNELS"] = program
                _measure(directory, program)


def _measure(model: Path, program: str) -> None:
    with contextlib.ExitStack() as open_models:
        models = [open_models.enter_context(_loaded(model, *case)) for case in CASES]
        for batch, num_tokens in NUM_TOKENS.items():
            for each in models:
                _tokens_per_second(each, batch, num_tokens)  # to warm up
            rounds = [[_tokens_per_second(each, batch, num_tokens) for each in models] for _ in range(NUM_ROUNDS)]
            for case, found in zip(CASES, zip(*rounds, strict=True), strict=True):
                name = "{} shards, {} stages, {} threads".format(*case)
                step = f"{batch * 1e3 / median(found):.1f} ms a token of each request"
                print(f"{program}, {name}, batch {batch}: {spread(found, 1)} tokens/s, {step}", flush=True)


@contextlib.contextmanager
def _loaded(model: Path, num_shards: int, num_stages: int, num_threads: int) -> Iterator[LLM]:
    with LLM(
        str(model),
        tokenizer="smollm2-135m-instruct",
        load_format="dummy",
        device="cpu",
        max_model_len=512,
        kv_cache_memory_gib=0.5,
        threads=num_threads,
        tensor_parallel_size=num_shards,
        pipeline_parallel_size=num_stages,
    ) as llm:
        yield llm


def _tokens_per_second(llm: LLM, batch: int, num_tokens: int) -> float:
    prompts = [TokensPrompt(prompt_token_ids=[5 + number, 9, 11]) for number in range(batch)]
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0)
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return num_tokens * batch / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
