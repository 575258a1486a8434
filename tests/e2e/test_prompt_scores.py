"""A teacher's scores of a student's candidates, through the whole stack: they are the log-probabilities of the prompt."""

from pathlib import Path

import numpy as np
import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.one_process_llm import one_process_llm
from tetrad import SamplingParams
from tetrad.services.errors import InvalidRequest

NUM_TOKENS = 260
PROMPT = [*range(40, 80)]
START = 9
CANDIDATES = np.random.default_rng(0).integers(0, NUM_TOKENS, (len(PROMPT) - 1 - START, 4), dtype=np.int32)
SCORED = SamplingParams(max_tokens=8, temperature=0, prompt_logprob_token_ids=CANDIDATES, prompt_logprob_start=START)
WHOLE = SamplingParams(max_tokens=8, temperature=0, prompt_logprobs=-1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("scores"))


def run(directory, params, **options):
    with one_process_llm(directory, max_logprobs=-1, **options) as llm:
        made = llm.generate([{"prompt_token_ids": PROMPT}] * len(params), params, use_tqdm=False)
        preempted = next(each.value for each in llm.get_metrics() if each.name == "tetrad:num_preemptions")
    return made, preempted


def expected_of(output):
    positions = output.prompt_logprobs[START + 1 :]
    rows = zip(positions, CANDIDATES.tolist(), strict=True)
    return np.array([[position[each].logprob for each in row] for position, row in rows])


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 16}, {"logprobs_mode": "raw_logits"}], ids=str)
def test_scores_are_the_log_probabilities_of_the_prompt(directory, options):
    (scored, whole, again), _ = run(directory, [SCORED, WHOLE, SCORED], **options)

    np.testing.assert_allclose(scored.prompt_token_id_logprobs, expected_of(whole), atol=1e-4)
    np.testing.assert_allclose(again.prompt_token_id_logprobs, expected_of(whole), atol=1e-4)
    assert (scored.prompt_token_id_logprobs.dtype, whole.prompt_token_id_logprobs) == (np.float32, None)
    assert scored.num_cached_tokens == again.num_cached_tokens == 0
    assert scored.outputs[0].token_ids == whole.outputs[0].token_ids


def test_preempted_requests_have_their_scores(directory):
    few = {"num_gpu_blocks_override": 14, "block_size": 8, "max_model_len": 96}

    longer = SamplingParams(max_tokens=24, ignore_eos=True, prompt_logprob_token_ids=CANDIDATES, prompt_logprob_start=START)
    found, preempted = run(directory, [longer] * 6, **few)

    expected = found[0].prompt_token_id_logprobs
    assert preempted
    for each in found:
        np.testing.assert_allclose(each.prompt_token_id_logprobs, expected, atol=1e-4)


def test_rows_must_fit_the_prompt(directory):
    wrong = SamplingParams(prompt_logprob_token_ids=CANDIDATES, prompt_logprob_start=START + 1)

    with pytest.raises(InvalidRequest, match="has 30 rows, but 29 tokens of the prompt follow prompt_logprob_start=10"):
        run(directory, [wrong])
