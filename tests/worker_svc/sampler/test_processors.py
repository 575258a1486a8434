"""Logits processors against transformers' own, token for token over whole greedy generations of a tiny model in float32.

All requests run in one batch, as they do when served; each is compared with a generation of its own by transformers. vLLM's
rules where the libraries differ: bad words, presence and frequency look at the output only, repetition at the prompt too.
"""

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from tetrad.worker_svc.core.plan import SamplingSpec

VOCAB_SIZE, EOS = 320, 2  # of the tiny model; the driver's EOS
NUM_TOKENS = 48
PROMPT = np.random.default_rng(11).integers(3, VOCAB_SIZE, 24).tolist()


class OutputOnly(LogitsProcessor):
    """Shows a processor the output alone, behind one id that nothing matches."""

    def __init__(self, processor):
        self._processor = processor

    def __call__(self, input_ids, scores):
        output = torch.cat([torch.full((1, 1), EOS), input_ids[:, len(PROMPT) :]], 1)
        return self._processor(output, scores)


class OpenAIPenalties(LogitsProcessor):
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, as OpenAI documents it; c counts the output."""

    def __init__(self, frequency, presence):
        self._frequency, self._presence = frequency, presence

    def __call__(self, input_ids, scores):
        counts = torch.bincount(input_ids[0, len(PROMPT) :], minlength=VOCAB_SIZE).float()
        return scores - self._frequency * counts - self._presence * (counts > 0)


def reference_processors(sampling):
    """Return transformers' processors for a request, in the worker's order."""
    found = LogitsProcessorList()
    if sampling.allowed_token_ids:
        found.append(SuppressTokensLogitsProcessor(sorted(set(range(VOCAB_SIZE)) - set(sampling.allowed_token_ids)), "cpu"))
    if sampling.bad_words:
        found.append(OutputOnly(NoBadWordsLogitsProcessor([list(word) for word in sampling.bad_words])))
    if sampling.logit_bias:
        found.append(SequenceBiasLogitsProcessor([[[i], bias] for i, bias in sampling.logit_bias.items()]))
    if sampling.min_tokens:
        ends = [EOS, *sampling.stop_token_ids]
        found.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), sampling.min_tokens, ends, "cpu"))
    if sampling.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.frequency_penalty or sampling.presence_penalty:
        found.append(OpenAIPenalties(sampling.frequency_penalty, sampling.presence_penalty))
    return found


@torch.inference_mode()
def reference_generation(model, sampling):
    """Return what transformers generates greedily, on past EOS."""
    processors, ids = reference_processors(sampling), torch.tensor([PROMPT])
    past, step = None, ids
    for _ in range(NUM_TOKENS):
        out = model(step, past_key_values=past, use_cache=True)
        past = out.past_key_values
        scores = processors(ids, out.logits[:, -1].float())
        step = scores.argmax(-1, keepdim=True)
        ids = torch.cat([ids, step], 1)
    return ids[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def plain_output(tiny_llama):
    return reference_generation(tiny_llama[1], SamplingSpec())


@pytest.fixture(scope="module")
def specs(plain_output):
    """Parameters that get in the way of what the model would have said."""
    out = plain_output
    words = tuple((out[i],) for i in (5, 30)) + tuple(tuple(out[i : i + n]) for i, n in ((0, 2), (8, 3), (20, 4), (12, 2)))
    likely = {out[i]: -3.0 for i in range(0, NUM_TOKENS, 5)} | {17: 2.0, 18: 1.5}
    kinds = {
        "repetition": {"repetition_penalty": 1.3},
        "repetition below one": {"repetition_penalty": 0.8},
        "frequency": {"frequency_penalty": 0.6},
        "negative frequency": {"frequency_penalty": -0.4},
        "presence": {"presence_penalty": 1.1},
        "all penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.4},
        "logit bias": {"logit_bias": likely},
        "bad words": {"bad_words": words},
        "allowed ids": {"allowed_token_ids": tuple(range(0, VOCAB_SIZE, 7))},
        "min tokens": {"min_tokens": 30, "stop_token_ids": (out[1], out[4], out[9])},
    }
    kinds["everything"] = {name: value for fields in kinds.values() for name, value in fields.items()} | {
        "allowed_token_ids": tuple(range(0, VOCAB_SIZE, 2)),
        "repetition_penalty": 1.1,
    }
    return {kind: SamplingSpec(temperature=0.0, **fields) for kind, fields in kinds.items()}


@pytest.fixture(scope="module")
def generated(tiny, specs, make_driver):
    driver = make_driver(tiny)
    for handle, sampling in enumerate([SamplingSpec(temperature=0.0), *specs.values()]):
        driver.add(handle, PROMPT, sampling)
    outputs = driver.generate(NUM_TOKENS)
    return dict(zip(["plain", *specs], outputs.values(), strict=True))


KINDS = [
    *("repetition", "repetition below one", "frequency", "negative frequency", "presence", "all penalties", "logit bias"),
    *("bad words", "allowed ids", "min tokens", "everything"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_generation_is_transformers_token_for_token(kind, tiny_llama, specs, generated, plain_output):
    assert generated["plain"] == plain_output
    assert generated[kind] == reference_generation(tiny_llama[1], specs[kind])
    assert generated[kind] != plain_output  # it had something to do


def test_penalties_survive_a_preemption(tiny, specs, generated, make_driver):
    """Forgotten in the middle and added again with its output so far, a request counts what it had counted."""
    driver = make_driver(tiny)
    driver.add(0, PROMPT, specs["all penalties"])
    driver.generate(20)
    preempted = driver.remove(0)
    resumed = driver.add(1, PROMPT, specs["all penalties"])
    resumed.output, resumed.num_tokens = preempted.output, len(PROMPT) + 20

    driver.generate(NUM_TOKENS)

    assert resumed.output == generated["all penalties"]
