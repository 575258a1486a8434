"""Models with sliding windows give transformers' greedy tokens when requests are cached, split or preempted.

Prompts are many times longer than the window, so most blocks behind it have been freed and used again by then.
"""

import random
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.library_calls import generate_together, value_of
from tests.e2e.tiny_model import save_tiny_model
from tests.one_process_llm import one_process_llm
from tests.worker_svc.families.test_parity import verified
from tetrad import LLM, SamplingParams

WINDOW, NUM_TOKENS = 24, 10
LENGTHS = [1, 15, 16, 24, 25, 40, 65, 90, 130, 171, 222, 300, 301, 380, 450]
MIXED = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 5,
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
}
"""Groups of two layers: one that sees all keys, and two with a window, of which one has a single layer."""
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": WINDOW}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Every third begins like the one before it."""
    rng = random.Random(0)
    prompts: list[list[int]] = []
    for number, length in enumerate(LENGTHS):
        prompt = [rng.randrange(5, 260) for _ in range(length)]
        if number % 3 == 2:
            shared = prompts[-1][: length * 2 // 3]
            prompt[: len(shared)] = shared
        prompts.append(prompt)
    return prompts


@dataclass(frozen=True)
class Model:
    """A tiny model's directory, a small pool for it, and transformers' own."""

    directory: str
    num_blocks: int
    reference: torch.nn.Module


MODELS = {"mixed": (MIXED, 180), "mistral": (MISTRAL, 23)}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory) -> Model:
    changes, num_blocks = MODELS[request.param]
    directory = save_tiny_model(tmp_path_factory.mktemp("windows"), **changes)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return Model(str(directory), num_blocks, reference)


def check_greedy(reference: torch.nn.Module, prompts: list[list[int]], outputs: list[list[int]]) -> None:
    """Check that each token is transformers' most likely one after those before it."""
    assert outputs == [verified(reference, prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]


def engine(directory: str, **options: object) -> AbstractContextManager[LLM]:
    return one_process_llm(directory, max_model_len=512, block_size=4, max_num_seqs=16, **options)


def generate(llm: LLM, prompts: list[list[int]], at_a_time: int, num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
    parts = [prompts[start : start + at_a_time] for start in range(0, len(prompts), at_a_time)]
    return [list(output.outputs[0].token_ids) for part in parts for output in generate_together(llm, part, params)]


@pytest.mark.parametrize("model", ["mixed", pytest.param("mistral", marks=pytest.mark.exhaustive)], indirect=True)
def test_whole_prompts_without_a_prefix_cache(model, prompts):
    with engine(model.directory, enable_prefix_caching=False) as llm:
        check_greedy(model.reference, prompts, generate(llm, prompts, at_a_time=len(prompts)))


def test_alone_and_again_from_the_prefix_cache_cut_and_preempted(model, prompts):
    """The pool holds the longest sequence and little more."""
    with engine(model.directory, max_num_batched_tokens=48, num_gpu_blocks_override=model.num_blocks) as llm:
        alone = generate(llm, prompts, at_a_time=1)
        assert value_of(llm, "tetrad:prefix_cache_hits") > 100
        assert generate(llm, prompts, at_a_time=len(prompts)) == alone
        assert value_of(llm, "tetrad:num_preemptions") > 0
    check_greedy(model.reference, prompts, alone)
