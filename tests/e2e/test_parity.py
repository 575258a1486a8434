"""Greedy parity with transformers in float32, token for token, however the requests were batched, cached, cut or preempted.

The reference runs transformers' own modelling code on the same dequantized weights. Ours runs through the whole stack.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoModelForCausalLM

from tetrad import LLM, SamplingParams

NUM_TOKENS = 8
LENGTHS = [
    1,
    2,
    3,
    5,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    47,
    48,
    49,
    63,
    64,
    65,
    70,
    96,
    100,
    127,
    128,
    129,
    180,
    200,
    256,
    300,
    500,
    2000,
]
NUM_PROMPTS = 50


@dataclass(frozen=True)
class Reference:
    prompts: list[list[int]]
    tokens: list[list[int]]
    logprobs: list[list[float]]


@pytest.fixture(scope="module")
def reference(smollm2) -> Reference:
    """What transformers generates: greedy tokens and their log-probabilities."""
    model = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()
    prompts = make_prompts()
    results = [generate(model, prompt) for prompt in prompts]
    return Reference(prompts, [tokens for tokens, _ in results], [logprobs for _, logprobs in results])


def make_prompts() -> list[list[int]]:
    """Return prompts of 1 to 2,000 tokens; every fifth of the short ones begins like the one before it."""
    rng = random.Random(0)
    lengths = LENGTHS + [rng.randrange(2, 60) for _ in range(NUM_PROMPTS - len(LENGTHS))]
    prompts: list[list[int]] = []
    for number, length in enumerate(lengths):
        prompt = [rng.randrange(5, 49_000) for _ in range(length)]
        if number % 5 == 4:
            shared = prompts[-1][: length // 2]
            prompt[: len(shared)] = shared
        prompts.append(prompt)
    return prompts


@torch.inference_mode()
def generate(model, prompt: list[int]) -> tuple[list[int], list[float]]:
    tokens, logprobs, past, ids = [], [], None, torch.tensor([prompt])
    for _ in range(NUM_TOKENS):
        output = model(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)
        past, scores = output.past_key_values, output.logits[0, -1].float().log_softmax(-1)
        tokens.append(int(scores.argmax()))
        logprobs.append(float(scores[tokens[-1]]))
        ids = torch.tensor([[tokens[-1]]])
    return tokens, logprobs


@contextmanager
def engine(smollm2, **options) -> Iterator[LLM]:
    llm = LLM(model=str(smollm2), dtype="float32", max_model_len=2048, threads=1, **options)
    try:
        yield llm
    finally:
        llm.close()


def check(llm: LLM, reference: Reference, at_a_time: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in reference.prompts]
    outputs = []
    for start in range(0, len(prompts), at_a_time):
        outputs += llm.generate(prompts[start : start + at_a_time], params, use_tqdm=False)
    completions = [output.outputs[0] for output in outputs]
    assert [list(completion.token_ids) for completion in completions] == reference.tokens
    for completion, expected in zip(completions, reference.logprobs, strict=True):
        chosen = [entry[token].logprob for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)]
        assert chosen == pytest.approx(expected, abs=1e-4)


def test_alone_and_again_from_the_prefix_cache(smollm2, reference):
    with engine(smollm2) as llm:
        check(llm, reference, at_a_time=1)
        check(llm, reference, at_a_time=NUM_PROMPTS)
        assert value_of(llm, "tetrad:prefix_cache_hits") > 1000


def test_32_at_a_time_without_a_prefix_cache_one_step_in_flight(smollm2, reference):
    with engine(smollm2, enable_prefix_caching=False, pipeline_depth=1) as llm:
        check(llm, reference, at_a_time=32)


def test_chunked_at_48_tokens(smollm2, reference):
    with engine(smollm2, max_num_batched_tokens=48) as llm:
        check(llm, reference, at_a_time=32)


def test_with_a_pool_so_small_that_requests_are_preempted(smollm2, reference):
    with engine(smollm2, block_size=4, num_gpu_blocks_override=514, max_num_seqs=32) as llm:
        check(llm, reference, at_a_time=NUM_PROMPTS)
        assert value_of(llm, "tetrad:num_preemptions") > 0


def value_of(llm: LLM, name: str) -> float:
    [metric] = [metric for metric in llm.get_metrics() if metric.name == name]
    return metric.value
