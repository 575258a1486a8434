"""The device's sampler against the host's, row for row: the same tokens, log-probabilities, ranks and failures."""

import numpy as np
import pytest
import torch

from tetrad.worker_svc.cuda.accelerator import CudaAccelerator, HostAccelerator
from tetrad.worker_svc.cuda.sampler import DeviceSampler
from tetrad.worker_svc.cuda.state import DeviceState
from tetrad.worker_svc.input_batch import InputBatch
from tetrad.worker_svc.plan import NewRequest, SamplingSpec
from tetrad.worker_svc.sampler.sampler import Sampler

V = 300
EOS = 2


class Pair:
    """Both samplers over the same requests, given by their parameters and tokens."""

    def __init__(self, *rows, vocab_size=V):
        self.vocab_size = vocab_size
        self.batch = InputBatch(max_num_seqs=len(rows) + 2, max_model_len=64, block_size=16)
        self.accelerator = CudaAccelerator() if torch.cuda.is_available() else HostAccelerator()
        self.state = DeviceState(self.accelerator, self.batch)
        self.host = Sampler(self.batch, vocab_size)
        self.device = DeviceSampler(self.accelerator, self.state, self.batch, vocab_size)
        slots = [self.add(handle, *row) for handle, row in enumerate(rows)]
        # In another order than that in which they came.
        self.slots = np.array(slots[::-1])

    def add(self, handle, sampling, prompt=(1,), output=()):
        ids = np.array([*prompt, *output], np.int64)
        request = NewRequest(handle, str(handle), ids, len(prompt), 0, len(ids), np.zeros(4, np.int64), sampling, EOS)
        slot = self.batch.add(request)
        for listener in (self.state, self.host, self.device):
            listener.add(slot, request)
        return slot

    def sample(self, logits, grammar=None, dtype=torch.float32):
        """Return what the host samples and what the device does; logits: [R, V], in the order of self.slots."""
        logits = torch.tensor(np.array(logits), dtype=dtype).reshape(len(self.slots), self.vocab_size)
        self.state.catch_up(self.slots)
        launched = self.device.sample(logits.to(self.accelerator.device, copy=True), self.slots, grammar)
        found = launched.read(self.accelerator.download(launched.tensors).wait())
        assert launched.token_ids.tolist() == found.token_ids.tolist()
        return self.host.sample(logits.float().clone(), self.slots, grammar), found


def assert_same(expected, found):
    failed = [row for row, _ in expected.failures]
    assert [(row, type(error), str(error)) for row, error in found.failures] == [
        (row, type(error), str(error)) for row, error in expected.failures
    ]
    assert np.delete(found.token_ids, failed).tolist() == np.delete(expected.token_ids, failed).tolist()
    for (rows, wanted), (found_rows, got) in zip(expected.logprobs, found.logprobs, strict=True):
        kept = ~np.isin(rows, failed)
        assert found_rows.tolist() == rows.tolist()
        assert got.token_ids[kept].tolist() == wanted.token_ids[kept].tolist()
        assert got.ranks[kept].tolist() == wanted.ranks[kept].tolist()
        np.testing.assert_allclose(got.logprobs[kept], wanted.logprobs[kept], rtol=1e-5, atol=1e-5)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 3


GREEDY = SamplingSpec(temperature=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_rows(dtype):
    pair = Pair((GREEDY,), (GREEDY,), (GREEDY,))

    assert_same(*pair.sample(np.round(normal(3, V)), dtype=dtype))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.01, "temperature": 1.7},
    ],
)
@pytest.mark.parametrize("vocab_size", [7, V])
def test_drawn_rows_beside_greedy_ones(fields, vocab_size):
    rows = [(SamplingSpec(seed=seed, **fields), [1] * (1 + seed)) for seed in range(4)]
    pair = Pair(*rows, (GREEDY,), vocab_size=vocab_size)

    assert_same(*pair.sample(normal(5, vocab_size)))


def test_logprobs_of_those_who_ask():
    asked = [
        {"num_logprobs": 0},
        {"num_logprobs": 3},
        {},
        {"num_logprobs": -1},
        {"logprob_token_ids": (7, 3)},
        {"num_logprobs": 3},
    ]
    pair = Pair(*((SamplingSpec(seed=seed, **fields),) for seed, fields in enumerate(asked)))

    expected, found = pair.sample(normal(6, V))

    assert len(found.logprobs) == 4
    assert_same(expected, found)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numpy, which interprets the kernels
@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingSpec(), SamplingSpec(top_p=0.5), SamplingSpec(num_logprobs=2)])
def test_a_row_without_a_finite_logit_fails_alone(value, sampling):
    pair = Pair((sampling,), (sampling,))
    logits = normal(2, V)
    logits[0, 5:] = value
    if value < 0:
        logits[0] = value

    expected, found = pair.sample(logits)

    assert [row for row, _ in found.failures] == [0]
    assert 0 <= found.token_ids[0] < V
    assert_same(expected, found)


def test_a_slot_that_is_taken_again_has_the_new_requests_parameters():
    pair = Pair((SamplingSpec(top_k=1, num_logprobs=2),), (SamplingSpec(seed=1),))
    pair.sample(normal(2, V))
    slot = pair.batch.remove(0)
    for listener in (pair.state, pair.host, pair.device):
        listener.remove(slot)
    assert pair.add(7, SamplingSpec(seed=9, temperature=1.5)) == slot

    expected, found = pair.sample(normal(2, V, seed=1))

    assert not found.logprobs
    assert_same(expected, found)
