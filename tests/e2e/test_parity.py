"""Greedy parity with transformers in float32, token for token, when requests are batched, cached, split or preempted.

The reference runs transformers' own modelling code on the same dequantized weights. Ours runs through all services. `make test`
has 24 prompts of up to 300 tokens; `make parity` has 50 of up to 2,000.
"""

import os
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest
import torch

from tests.e2e.library_calls import generate_together, value_of
from tests.e2e.transformers_model import load_transformers_model
from tests.one_process_llm import one_process_llm
from tetrad import LLM, CompletionOutput, SamplingParams

NUM_TOKENS = 8
ALL_LENGTHS = bool(os.environ.get("TEST_ALL_LENGTHS"))
LENGTHS = [1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 129, 300]
if ALL_LENGTHS:
    LENGTHS += [100, 127, 128, 180, 256, 400, 700, 1200, 2000]
MAX_MODEL_LEN = max(LENGTHS) + 48
NUM_PROMPTS = 50 if ALL_LENGTHS else 24


@dataclass(frozen=True)
class Reference:
    prompts: list[list[int]]
    drafts: list[list[int]]
    tokens: list[list[int]]
    logprobs: list[list[float]]


@pytest.fixture(scope="module")
def reference(smollm2) -> Reference:
    """What transformers generates: greedy tokens and their log-probabilities."""
    prompts = make_prompts()
    with engine(smollm2, max_num_batched_tokens=48, enable_prefix_caching=False, pipeline_depth=1) as llm:
        drafts = [list(completion.token_ids) for completion in generate(llm, prompts, at_a_time=32)]
    model = load_transformers_model(smollm2)
    results = [verify(model, prompt, draft) for prompt, draft in zip(prompts, drafts, strict=True)]
    return Reference(prompts, drafts, [tokens for tokens, _ in results], [logprobs for _, logprobs in results])


def make_prompts() -> list[list[int]]:
    """Return prompts of all lengths; every fifth of the short ones begins like the one before it."""
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
def verify(model, prompt: list[int], draft: list[int]) -> tuple[list[int], list[float]]:
    """Return the most likely token and its log-probability at each place of a draft: until one differs, what is generated."""
    scores = model(input_ids=torch.tensor([prompt + draft[:-1]]), logits_to_keep=len(draft)).logits[0].float().log_softmax(-1)
    tokens = scores.argmax(-1)
    return tokens.tolist(), scores[torch.arange(len(tokens)), tokens].tolist()


def engine(smollm2, **options) -> AbstractContextManager[LLM]:
    return one_process_llm(smollm2, dtype="float32", max_model_len=MAX_MODEL_LEN, **options)


def generate(llm: LLM, prompts: list[list[int]], at_a_time: int) -> list[CompletionOutput]:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0, detokenize=False)
    parts = [prompts[start : start + at_a_time] for start in range(0, len(prompts), at_a_time)]
    return [output.outputs[0] for part in parts for output in generate_together(llm, part, params)]


def check(llm: LLM, reference: Reference, at_a_time: int, numbers: Sequence[int] = range(NUM_PROMPTS)) -> None:
    completions = generate(llm, [reference.prompts[number] for number in numbers], at_a_time)
    assert [list(completion.token_ids) for completion in completions] == [reference.tokens[number] for number in numbers]
    for completion, number in zip(completions, numbers, strict=True):
        expected = reference.logprobs[number]
        chosen = [entry[token].logprob for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)]
        assert chosen == pytest.approx(expected, abs=1e-4)


def test_32_at_a_time_in_chunks_of_48_tokens_without_a_prefix_cache_one_step_in_flight(reference):
    assert reference.drafts == reference.tokens


def test_alone_and_again_from_the_prefix_cache_while_requests_are_preempted(smollm2, reference):
    """The pool holds the longest sequence and a quarter more. The tests below have one of these at a time.

    Alone are the prompts that begin like the one before them, and those: each token of one request is a step of its own, and
    these take most of the time.
    """
    with engine(smollm2, block_size=4, num_gpu_blocks_override=MAX_MODEL_LEN * 5 // 16) as llm:
        check(llm, reference, at_a_time=1, numbers=[number for number in range(NUM_PROMPTS) if number % 5 >= 3])
        check(llm, reference, at_a_time=NUM_PROMPTS)
        assert value_of(llm, "tetrad:prefix_cache_hits") > sum(LENGTHS) / 4
        assert value_of(llm, "tetrad:num_preemptions") > 0


each_alone = pytest.mark.exhaustive(short="test_alone_and_again_from_the_prefix_cache_while_requests_are_preempted")


@each_alone
def test_32_at_a_time_without_a_prefix_cache_one_step_in_flight(smollm2, reference):
    with engine(smollm2, enable_prefix_caching=False, pipeline_depth=1) as llm:
        check(llm, reference, at_a_time=32)


@each_alone
def test_alone_and_again_from_the_prefix_cache(smollm2, reference):
    with engine(smollm2) as llm:
        check(llm, reference, at_a_time=1)
        check(llm, reference, at_a_time=NUM_PROMPTS)
        assert value_of(llm, "tetrad:prefix_cache_hits") > sum(LENGTHS) / 2


@each_alone
def test_chunked_at_48_tokens(smollm2, reference):
    with engine(smollm2, max_num_batched_tokens=48) as llm:
        check(llm, reference, at_a_time=32)


@each_alone
def test_with_a_pool_so_small_that_requests_are_preempted(smollm2, reference):
    with engine(smollm2, block_size=4, num_gpu_blocks_override=MAX_MODEL_LEN // 4 + 2, max_num_seqs=32) as llm:
        check(llm, reference, at_a_time=NUM_PROMPTS)
        assert value_of(llm, "tetrad:num_preemptions") > 0
