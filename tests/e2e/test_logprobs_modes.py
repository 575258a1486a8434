"""The values that requests get as log-probabilities, through the whole stack, for each logprobs mode."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.tiny_model import VOCAB_SIZE, save_tiny_model
from tests.one_process_llm import one_process_llm
from tetrad import BeamSearchParams, SamplingParams
from tetrad.services.errors import InvalidRequest

PROMPT = {"prompt_token_ids": [40, 41, 42, 43]}
COLD = {"temperature": 0.5, "top_k": 3, "seed": 1, "logit_bias": {100: 1.0}}
PLAIN = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=-1, prompt_logprobs=-1)
CUT = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=-1, prompt_logprobs=-1, **COLD)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("modes"))


@pytest.fixture(scope="module")
def raw(directory):
    """The answers to PLAIN and CUT with log-probabilities of the model."""
    return answers(directory, "raw_logprobs")


def answers(directory, mode, **options):
    with one_process_llm(directory, max_logprobs=-1, logprobs_mode=mode, **options) as llm:
        return llm.generate([PROMPT] * 2, [PLAIN, CUT], use_tqdm=False)


def values(places):
    """Return the values of the whole vocabulary at each place [places, V]."""
    return np.array([[place[token_id].logprob for token_id in range(VOCAB_SIZE)] for place in places])


def normalized(logits):
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits"])
def test_logits_are_what_log_probabilities_are_made_of(directory, raw, mode):
    plain, cut = answers(directory, mode)

    assert [each.outputs[0].token_ids for each in (plain, cut)] == [each.outputs[0].token_ids for each in raw]
    logits, logprobs = values(plain.outputs[0].logprobs), values(raw[0].outputs[0].logprobs)
    assert np.abs(logits - logprobs).max() > 0.1
    np.testing.assert_allclose(normalized(logits), logprobs, atol=1e-4)
    prompt = values(cut.prompt_logprobs[1:])
    np.testing.assert_allclose(normalized(prompt), values(raw[1].prompt_logprobs[1:]), atol=1e-4)


def test_processed_log_probabilities_are_those_of_the_draw(directory, raw):
    plain, cut = answers(directory, "processed_logprobs")

    np.testing.assert_allclose(values(plain.outputs[0].logprobs), values(raw[0].outputs[0].logprobs), atol=1e-4)
    found = values(cut.outputs[0].logprobs)
    assert (np.isfinite(found).sum(1) == COLD["top_k"]).all()
    np.testing.assert_allclose(np.exp(found).sum(1), 1.0, atol=1e-4)
    logits = values(raw[1].outputs[0].logprobs)
    logits[:, 100] += 1.0
    logits /= COLD["temperature"]
    logits[logits < np.sort(logits)[:, [-COLD["top_k"]]]] = -math.inf
    np.testing.assert_allclose(found, normalized(logits), atol=1e-4)
    assert cut.outputs[0].cumulative_logprob == pytest.approx(
        sum(place[token_id].logprob for place, token_id in zip(cut.outputs[0].logprobs, cut.outputs[0].token_ids, strict=True))
    )
    np.testing.assert_allclose(values(cut.prompt_logprobs[1:]), values(raw[1].prompt_logprobs[1:]), atol=1e-4)


def test_preempted_requests_bring_the_same_values(directory):
    """Six requests in blocks for two of them."""
    params = [SamplingParams(max_tokens=24, ignore_eos=True, logprobs=3, **COLD | {"seed": seed}) for seed in range(6)]
    found = []
    for num_blocks in (200, 10):
        few = {"num_gpu_blocks_override": num_blocks, "block_size": 8, "max_model_len": 64}
        with one_process_llm(directory, logprobs_mode="processed_logprobs", **few) as llm:
            made = llm.generate([PROMPT] * 6, params, use_tqdm=False)
            preempted = next(each.value for each in llm.get_metrics() if each.name == "tetrad:num_preemptions")
        found.append(
            [
                [{i: v.logprob for i, v in place.items() if v.logprob > -9e9} for place in each.outputs[0].logprobs]
                for each in made
            ]
        )

    assert preempted
    for many, few in zip(*found, strict=True):
        assert [place.keys() for place in many] == [place.keys() for place in few]
        for one, other in zip(many, few, strict=True):
            assert one == pytest.approx(other, abs=1e-4)


def test_beam_search_needs_log_probabilities(directory):
    with (
        one_process_llm(directory, logprobs_mode="raw_logits") as llm,
        pytest.raises(InvalidRequest, match="logprobs_mode raw_logits has logits"),
    ):
        llm.beam_search([PROMPT], BeamSearchParams(beam_width=2, max_tokens=3))
