"""Tokens per second of one rank, two shards and two stages, on SmolLM2's shape with 8 heads: `python -m benchmarks.ranks`.

Weights are random: load_format "dummy". Shards and stages are compared with one rank that runs the same program.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

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
NUM_TOKENS = 40
CASES = (
    ("torch", 1, 1, 1),
    ("torch", 1, 1, 2),
    ("torch", 2, 1, 1),
    ("torch", 1, 2, 1),
    ("native", 1, 1, 1),
    ("native", 1, 1, 2),
    ("native", 2, 1, 1),
    ("native", 1, 2, 1),
)
"""Cases: program, number of shards, number of stages, threads of each rank."""


def main() -> None:
    """Print a line for each case and number of requests. Arguments select the programs: torch, native."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "config.json").write_text(json.dumps(CONFIG))
        for program, *sizes in CASES:
            if program in (sys.argv[1:] or ["torch", "native"]):
                # Shards of the torch program add their results over gloo, because they do not use the native kernels.
                os.environ["TETRAD_WORKER_CPU_KERNELS"] = program
                _measure(directory, program, *sizes)


def _measure(model: Path, program: str, num_shards: int, num_stages: int, num_threads: int) -> None:
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
        for batch in (1, 32):
            prompts = [TokensPrompt(prompt_token_ids=[5 + number, 9, 11]) for number in range(batch)]
            params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0)
            llm.generate(prompts, params.clone(), use_tqdm=False)
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            seconds = time.perf_counter() - start
            print(
                f"{program}, {num_shards} shards, {num_stages} stages, {num_threads} threads, batch {batch}: "
                f"{NUM_TOKENS * batch / seconds:.1f} tokens/s, {seconds / NUM_TOKENS * 1e3:.1f} ms a token of each request"
            )


if __name__ == "__main__":
    main()
