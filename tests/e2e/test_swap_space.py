"""The second tier in real processes, over a tiny model: evicted blocks are found again, and no answer changes."""

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tetrad import LLM, SamplingParams
from tetrad.services.errors import TetradError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [[5 + (number * 79 + i * 31) % 257 for i in range(200)] for number in range(3)]
"""13 blocks each, 39 in all."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(("swap_space", "num_cached"), [(0.1, 192), pytest.param(0, 0, marks=pytest.mark.exhaustive)])
def test_what_does_not_fit_the_cache_is_found_on_the_host_and_changes_no_answer(model, swap_space, num_cached):
    with LLM(model, device="cpu", threads=1, max_model_len=256, num_gpu_blocks_override=24, swap_space=swap_space) as llm:

        def ask(prompt: list[int]) -> tuple[list[int], int | None]:
            [output] = llm.generate({"prompt_token_ids": prompt}, GREEDY, use_tqdm=False)
            return output.outputs[0].token_ids, output.num_cached_tokens

        first = [ask(prompt) for prompt in PROMPTS]
        again = [ask(prompt) for prompt in PROMPTS]

    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in first]
    assert [num for _, num in first] == [0] * 3
    assert [num for _, num in again] == [num_cached] * 3


def test_more_than_the_host_has_is_one_line_with_the_numbers(model):
    with pytest.raises(TetradError, match=r"swap_space.* needs \d+ bytes; \d+ are available"):
        LLM(model, device="cpu", threads=1, max_model_len=256, num_gpu_blocks_override=24, swap_space=16_000)
