"""Speech rules: the tokens that transformers' processor leaves, and no end behind the beginning of a sentence."""

import random

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from tetrad.worker_svc.core.plan import TimestampRules
from tetrad.worker_svc.sampler.speech_rules import _apply_times

END, NO_TIMES, FIRST, VOCAB = 40, 49, 50, 90
"""Text, special tokens, timestamps."""


def transformers_scores(output, scores):
    config = GenerationConfig(no_timestamps_token_id=NO_TIMES, eos_token_id=END, max_initial_timestamp_index=10)
    scores = scores.clone()
    if len(output) > 1 and min(output[-2:]) >= FIRST and output[-1] < FIRST + 30:  # a sentence that has begun is written
        scores[END] = -torch.inf
    return WhisperTimeStampLogitsProcessor(config, 2)(torch.tensor([[0, 0, *output]]), scores[None])[0]


@pytest.mark.parametrize("seed", range(20))
def test_timestamps_follow_transformers_rules(seed):
    """Outputs that the rules themselves allow, token by token."""
    dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    output = []
    for _ in range(30):
        scores = torch.randn(VOCAB, generator=generator) * 3
        scores[FIRST:] += dice.choice((-4, 0, 2))
        ours = scores.clone()
        ours[NO_TIMES] = -torch.inf

        _apply_times(ours, np.array(output, np.int32), TimestampRules(FIRST, 10, 30), END)

        expected = transformers_scores(output, scores)
        assert torch.equal(ours, expected)
        output.append(
            int(ours.argmax()) if dice.random() < 0.7 else dice.choice(torch.nonzero(ours > -torch.inf)[:, 0].tolist())
        )
        if output[-1] == END:
            break
