"""The device's scores against the host's, in each logprobs mode."""

import numpy as np
import pytest
import torch

from tests.worker_svc.cuda.conftest import host_only
from tests.worker_svc.cuda.test_device_sampler import GREEDY, Pair, V, assert_same, normal
from tests.worker_svc.kernels.test_choice import DEVICE
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.sampler_options import LogprobsMode
from tetrad.worker_svc.kernels.processed_logits import processed_logits, processed_logits_reference

CHOSEN = (3, 8, 250)
ROWS = (
    SamplingSpec(seed=1, temperature=0.7, num_logprobs=4),
    SamplingSpec(seed=2, top_k=5, num_logprobs=4),
    SamplingSpec(seed=3, top_p=0.8, logit_bias={8: 4.0}, logprob_token_ids=CHOSEN),
    SamplingSpec(seed=4, min_p=0.05),
    SamplingSpec(temperature=0.0, logit_bias={8: 4.0}, num_logprobs=0),
)


@pytest.mark.parametrize("mode", LogprobsMode)
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[4:], (ROWS[2], GREEDY)], ids=len)
def test_values_are_the_hosts(rows, mode):
    pair = Pair(*((row,) for row in rows), mode=mode)

    expected, found = pair.sample(normal(len(rows), V))

    assert_same(expected, found)
    assert expected.logprobs


@pytest.mark.parametrize("mode", LogprobsMode)
def test_values_of_half_precision(mode):
    pair = Pair((ROWS[2],), (ROWS[0],), mode=mode)

    assert_same(*pair.sample(normal(2, V), dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab_size"), [(1, 1), (3, 50), (2, 4097)])
def test_processed_logits(rows, vocab_size, dtype):
    logits = torch.from_numpy(normal(rows, vocab_size + 1)).to(DEVICE, dtype)[:, :vocab_size]
    slots = torch.arange(rows, device=DEVICE).flip(0)
    temperature = torch.tensor([0.0, 0.5, 2.0][:rows], dtype=torch.float64, device=DEVICE)
    thresholds = torch.tensor([0.3, 0.0, 0.01], device=DEVICE)

    found = processed_logits(logits, thresholds, slots, temperature)

    torch.testing.assert_close(found, processed_logits_reference(logits, thresholds, slots, temperature))


@host_only
def test_raw_logits_are_copied_only_where_they_are_needed():
    logits = torch.from_numpy(np.zeros((1, V), np.float32))
    for mode, is_kept in ((LogprobsMode.RAW_LOGITS, True), (LogprobsMode.PROCESSED_LOGITS, False)):
        pair = Pair((SamplingSpec(temperature=0.0, logit_bias={8: 4.0}, num_logprobs=0),), mode=mode)
        given = logits.clone()

        pair.device.sample(given, pair.slots, None)

        assert bool((given == 0).all()) == is_kept
