"""The device's sampler against the host's, row for row: the same tokens, log-probabilities, ranks and failures."""

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from tests.worker_svc.cuda.conftest import host_only
from tests.worker_svc.kernels import sampling_kernels
from tests.worker_svc.sampler.custom_processors import MODULE
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import GrammarRows, NewRequest, PromptEmbeds, SamplingSpec
from tetrad.worker_svc.core.sampler_options import LogprobsMode, SamplerOptions
from tetrad.worker_svc.cuda.device.accelerator import CudaAccelerator, HostAccelerator
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.cuda.sampling.sampler import DeviceSampler
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.sampler.custom_classes import import_classes, make_processors
from tetrad.worker_svc.sampler.sampler import Sampler

V = 300
EOS = 2


def made_for(names, device, vocab_size):
    classes = import_classes([f"{MODULE}:{name}" for name in names])
    return make_processors(classes, device, vocab_size=vocab_size, max_model_len=64, max_num_seqs=8)


class Pair:
    """Both samplers over the same requests, given by their parameters and tokens.

    Each has an input batch of its own: the device's does not know the tokens that are sampled, as in a runner.
    """

    def __init__(self, *rows, vocab_size=V, processors=(), mode=LogprobsMode.RAW_LOGPROBS):
        self.vocab_size = vocab_size
        self.accelerator = CudaAccelerator() if torch.cuda.is_available() else HostAccelerator()
        limits = {"max_num_seqs": len(rows) + 2, "max_model_len": 64, "block_size": 16}
        self.host_batch, self.batch = InputBatch(**limits), InputBatch(**limits)
        self.state = DeviceState(self.accelerator, self.batch)
        hosts, devices = (made_for(processors, device, vocab_size) for device in (torch.device("cpu"), self.accelerator.device))
        self.host = Sampler(self.host_batch, vocab_size, hosts, mode)
        self.device = DeviceSampler(self.accelerator, self.state, self.batch, vocab_size, devices, mode)
        slots = [self.add(handle, *row) for handle, row in enumerate(rows)]
        # In another order than that in which they came.
        self.slots = np.array(slots[::-1])

    def add(self, handle, sampling, prompt=(1,), output=(), **fields):
        ids, blocks = np.array([*prompt, *output], np.int64), np.zeros((1, 4), np.int64)
        request = NewRequest(handle, str(handle), ids, len(prompt), 0, len(ids), blocks, sampling, EOS, **fields)
        slot = self.batch.add(request)
        assert self.host_batch.add(request) == slot
        for listener in (self.state, self.host, self.device):
            listener.add(slot, request)
        self.state.catch_up(np.array([slot]))
        return slot

    def remove(self, handle):
        slot = self.batch.remove(handle)
        assert self.host_batch.remove(handle) == slot
        for listener in (self.state, self.host, self.device):
            listener.remove(slot)

    def sample(self, logits, grammar=None, dtype=torch.float32):
        """Return what the host samples and what the device does; logits: [R, V], in the order of self.slots."""
        logits = torch.tensor(np.array(logits), dtype=dtype).reshape(len(self.slots), self.vocab_size)
        launched = self.device.sample(logits.to(self.accelerator.device, copy=True), self.slots, grammar)
        found = launched.read(self.accelerator.download(launched.tensors).wait())
        assert launched.token_ids.tolist() == found.token_ids.tolist()
        # Only the device knows them: nothing is caught up that has come since a request was added.
        self.state.token_ids[self.slots, self.batch.num_tokens[self.slots]] = launched.token_ids
        self.batch.append_sampled(self.slots, np.zeros(len(self.slots), np.int64))
        expected = self.host.sample(logits.float().clone(), self.slots, grammar)
        self.host_batch.append_sampled(self.slots, expected.token_ids)
        return expected, found


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


def test_top_k_of_one_is_greedy_beside_drawn_rows():
    pair = Pair((SamplingSpec(seed=1, top_k=1, top_p=0.5, min_p=0.1),), (SamplingSpec(seed=2),), (GREEDY,))
    expected, found = pair.sample(np.tile(np.round(normal(V)), (3, 1)))

    assert_same(expected, found)
    assert found.token_ids[0] == found.token_ids[2]


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
def test_drawn_rows_beside_greedy_ones(fields):
    rows = [(SamplingSpec(seed=seed, **fields), [1] * (1 + seed)) for seed in range(3)]
    pair = Pair(*rows, (GREEDY,))

    assert_same(*pair.sample(normal(4, V)))


def test_a_vocabulary_smaller_than_top_k():
    pair = Pair((SamplingSpec(seed=1, top_k=20, top_p=0.9),), (SamplingSpec(seed=2, top_k=7),), vocab_size=7)

    assert_same(*pair.sample(normal(2, 7)))


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
    slot = pair.slots[1]
    pair.remove(0)
    assert pair.add(7, SamplingSpec(seed=9, temperature=1.5)) == slot

    expected, found = pair.sample(normal(2, V, seed=1))

    assert not found.logprobs
    assert_same(expected, found)


def test_slots_that_are_free_again_leave_nothing_behind():
    everything = SamplingSpec(**{name: value for kind in PROCESSED for name, value in kind.items()}, num_logprobs=1)
    pair = Pair((everything, [1, 2]), (everything, [3]))
    pair.sample(normal(2, V))
    pair.remove(0)
    pair.remove(1)
    pair.slots = np.array([pair.add(5, GREEDY), pair.add(6, SamplingSpec(seed=4))])

    expected, found = pair.sample(normal(2, V))

    assert not found.logprobs
    assert_same(expected, found)


# --- Processors ---

LIKELY = tuple(range(20))
PROCESSED = [
    {"allowed_token_ids": (3, 7, 8, 40, 299)},
    {"bad_words": ((5,), (4, 6), (7, 7), (3, 4, 5, 6))},
    {"logit_bias": {4: 3.0, 9: -100.0}},
    {"min_tokens": 3, "stop_token_ids": (4, 5)},
    {"repetition_penalty": 1.4},
    {"frequency_penalty": 0.9, "presence_penalty": 0.5},
    {"thinking_token_budget": 2, "thinking_end_ids": (30, 31)},
]


def peaked(*shape, seed):
    """Return logits of which a few ids have nearly all, so that outputs repeat themselves."""
    logits = normal(*shape, seed=seed)
    logits[:, LIKELY] += 8
    return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_processors_step_after_step(temperature):
    """Rows of every kind, some of several, over steps of which the host does not see the tokens."""
    kinds = [*PROCESSED, {}, PROCESSED[1] | PROCESSED[2] | PROCESSED[3] | PROCESSED[4] | PROCESSED[5] | PROCESSED[6]]
    specs = [SamplingSpec(temperature=temperature, seed=seed, **kind) for seed, kind in enumerate(kinds)]
    pair = Pair(*((spec, [3, 4, 5], [4, 7][: row % 3]) for row, spec in enumerate(specs)))

    for step in range(5):
        assert_same(*pair.sample(peaked(len(kinds), V, seed=step)))


@pytest.mark.parametrize("num_words", [2, 10])
def test_a_grammar_masks_its_rows(num_words):
    """Beside other masks, and where it has fewer words than the vocabulary needs."""
    rng = np.random.default_rng(3)
    pair = Pair((GREEDY,), (SamplingSpec(allowed_token_ids=(1, 2, 50)),), (SamplingSpec(seed=1),), (GREEDY,))
    bitmask = rng.integers(0, 2**32, (4, num_words)).astype(np.uint32)
    bitmask[1, 1] |= 1 << 18
    grammar = GrammarRows(np.array([3, 1, 99, 2]), bitmask)

    assert_same(*pair.sample(normal(4, V), grammar))
    assert_same(*pair.sample(normal(4, V, seed=1), GrammarRows(np.array([99]), bitmask[:1])))


def test_logprobs_are_those_of_the_logits_before_processors():
    fields = {"logit_bias": {4: 30.0}, "num_logprobs": 2}
    pair = Pair((SamplingSpec(**fields),), (GREEDY,), (SamplingSpec(num_logprobs=2),))

    assert_same(*pair.sample(normal(3, V)))


def test_processors_of_bfloat16_logits_work_in_float32():
    pair = Pair((SamplingSpec(temperature=0.0, logit_bias={4: 0.001, 5: 0.002}, num_logprobs=1),))
    logits = np.zeros((1, V))
    logits[0, 4:6] = 8

    expected, found = pair.sample(logits, dtype=torch.bfloat16)

    assert found.token_ids.tolist() == [5]
    assert_same(expected, found)


def test_requests_that_come_and_go_beside_penalised_ones():
    """Lines of the count of tokens are used again, and more of them are made."""
    penalised = SamplingSpec(temperature=0.0, frequency_penalty=1.5)
    pair = Pair((penalised, [4], [4]), (penalised, [5]))
    for step in range(4):
        assert_same(*pair.sample(peaked(2, V, seed=9)))
        pair.remove(step)
        pair.slots = np.array([pair.slots[0], pair.add(step + 2, penalised, [3], [4] * step)])


@pytest.mark.parametrize(
    ("prompt", "positions", "output"), [([0, 0, 4], [0, 1], []), ([0, 5, 0, 5], [0, 2], [7, 0]), ([0, 0], [0, 1], [4])]
)
def test_positions_with_embeddings_are_not_penalised(prompt, positions, output):
    """Their ids are placeholders, which the request has never seen; the ids beside them, and those of the output, count."""
    penalised = SamplingSpec(temperature=0.0, repetition_penalty=1.8, frequency_penalty=0.5)
    pair = Pair()
    embeds = PromptEmbeds(np.array(positions), np.zeros((2, 8), np.float32))
    pair.slots = np.array([pair.add(1, penalised, prompt, output, prompt_embeds=embeds)])
    logits = normal(V) - 5
    logits[[0, 4, 5, 7]] = 4, 5, 5, 3

    for _ in range(4):
        assert_same(*pair.sample(logits))


def test_a_row_of_which_nothing_is_left_says_why():
    nothing = SamplingSpec(allowed_token_ids=(3,), bad_words=((3,),))
    pair = Pair((GREEDY,), (nothing,))

    expected, found = pair.sample(normal(2, V))

    assert [(row, type(error)) for row, error in found.failures] == [(0, InvalidRequest)]
    assert_same(expected, found)


# --- Warm-up ---


@host_only
def test_warm_up_launches_every_kernel_of_sampling(tiny_cuda, monkeypatch):
    """A kernel is compiled when it is first launched, which takes a second."""
    launched = set()
    call = interpreter.GridExecutor.__call__

    def noted(self, *args, **kwargs):
        launched.add(self.fn.__name__)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", noted)
    layout = KvLayout(num_blocks=8, block_size=16, max_model_len=16, max_num_seqs=1, max_num_batched_tokens=16)

    sampling = SamplerOptions(logprobs_mode=LogprobsMode.PROCESSED_LOGPROBS)
    runner = CudaModelRunner(tiny_cuda.decoder, layout, HostAccelerator(), sampling=sampling)

    runner.warm_up(lambda *_: None)

    assert {kernel.__name__ for kernel, *_ in sampling_kernels.KERNELS} <= launched


def test_custom_processors():
    """Two and three parameters, beside rows without any, over tokens that only the device knows."""
    rows = [
        (SamplingSpec(seed=1, extra_args={"hash": 4.0}), [1, 2, 3], [4]),
        (GREEDY,),
        (SamplingSpec(temperature=0.0, extra_args={"hash": 2.0, "target": 20}, num_logprobs=2), [5, 6], []),
        (SamplingSpec(seed=2, top_k=5, frequency_penalty=1.5, logit_bias={7: 3.0}, extra_args={"hash": 3.0}), [1], [7]),
        (SamplingSpec(seed=3, num_logprobs=1, allowed_token_ids=(3, 4, 5)), [1], []),
    ]
    pair = Pair(*rows, processors=("Hash", "Target"))

    for seed in range(4):
        assert_same(*pair.sample(normal(len(rows), V, seed=seed)))


@host_only
@pytest.mark.parametrize("wrong", ["shape", "type", "list", "None", "sparse", "NaN", "infinity", "nothing left", "raises"])
def test_errors_of_custom_processors(wrong):
    rows = [(GREEDY,), (SamplingSpec(temperature=0.0, extra_args={"wrong": wrong}),), (SamplingSpec(seed=4, num_logprobs=2),)]
    pair = Pair(*rows, processors=("Wrong", "Target"))

    assert_same(*pair.sample(normal(3, V)))
