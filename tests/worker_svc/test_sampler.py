"""The sampler, row by row against a plain reference, and as a whole: greedy, seeded, independent of its batch."""

import math

import numpy as np
import pytest
import torch

from tetrad.services.errors import InternalError, InvalidRequest
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import GrammarRows, NewRequest, SamplingSpec
from tetrad.worker_svc.sampler.draw import block_sums, draw, weigh_
from tetrad.worker_svc.sampler.philox import philox4x32, uniforms
from tetrad.worker_svc.sampler.sampler import Sampler
from tetrad.worker_svc.sampler.truncation import TruncationRows, truncate

V = 50


class Bench:
    """A sampler over requests that are given by their parameters and tokens."""

    def __init__(self, *rows, vocab_size=V):
        self.batch = InputBatch(max_num_seqs=64, max_model_len=128, block_size=16)
        self.sampler = Sampler(self.batch, vocab_size)
        self.vocab_size = vocab_size
        for handle, (sampling, prompt, output) in enumerate(rows):
            ids = np.array([*prompt, *output], np.int64)
            request = NewRequest(
                handle, str(handle), ids, len(prompt), 0, len(ids), np.zeros(8, np.int64), sampling, eos_token_id=2
            )
            self.sampler.add(self.batch.add(request), request)
        self.slots = np.array(self.batch.slots_of(list(range(len(rows)))))

    def sample(self, logits, grammar=None):
        logits = torch.tensor(np.array(logits), dtype=torch.float32).reshape(len(self.slots), self.vocab_size).clone()
        return self.sampler.sample(logits, self.slots, grammar)


def greedy_of(sampling, logits, prompt=(1,), output=(), grammar=None):
    return int(Bench((sampling, prompt, output)).sample(logits, grammar).token_ids[0])


def peaks(**values):
    logits = np.zeros(V, np.float32)
    for name, value in values.items():
        logits[int(name[1:])] = value
    return logits


# --- Philox ---


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_matches_random123s_known_answers(counter, key, expected):
    words = philox4x32(tuple(np.array([w], np.uint64) for w in counter), tuple(np.array([w], np.uint64) for w in key))

    assert [int(word[0]) for word in words] == expected


def test_uniforms_depend_on_seed_position_and_stream_alone():
    seeds, positions, streams = np.array([1, 1, -5, 2**62, 1, 1]), np.array([7, 8, 7, 7, 7, 7]), np.array([0, 0, 0, 0, 0, 3])

    together = uniforms(seeds, positions, streams, 5)

    alone = [uniforms(seeds[i : i + 1], positions[i : i + 1], streams[i : i + 1], 5)[0].tolist() for i in range(6)]
    assert together.tolist() == alone
    assert len(set(together.ravel().tolist())) == 25
    assert (together[0] == together[4]).all()
    assert ((together >= 0) & (together < 1)).all()


# --- Greedy ---


def test_greedy_takes_the_lowest_id_on_ties():
    assert greedy_of(SamplingSpec(temperature=0.0), peaks(_7=3, _30=3)) == 7


def test_greedy_rows_are_greedy_beside_drawn_ones():
    bench = Bench(
        (SamplingSpec(temperature=0.0), [1], []), (SamplingSpec(seed=3), [1], []), (SamplingSpec(temperature=0.0), [1], [])
    )

    tokens = bench.sample([peaks(_4=1), np.zeros(V), peaks(_9=1)]).token_ids

    assert (tokens[0], tokens[2]) == (4, 9)


# --- Truncation ---


def kept_by_reference(logits, top_k, top_p, min_p):
    """Return the ids that may be drawn: sort, cut by min_p, then k, then p, keep ties with the last one kept."""
    weights = np.exp((logits - logits.max()).astype(np.float64)).astype(np.float32).astype(np.float64)
    order = [i for i in np.argsort(-weights, kind="stable") if weights[i] >= np.float32(min_p)]
    if top_k:
        order = [i for i in order if weights[i] >= weights[order[min(top_k, len(order)) - 1]]]
    if top_p < 1:
        total, mass, kept = sum(weights[order]), 0.0, []
        for i in order:
            if mass >= top_p * total:
                break
            kept.append(i)
            mass += weights[i]
        order = [i for i in order if weights[i] >= weights[kept[-1]]]
    return set(order)


def kept_ids(weights, *params):
    """Return the ids that each row of weights keeps; checks that the sums of blocks are those of what is kept."""
    sums = block_sums(weights)
    thresholds = truncate(weights, sums, TruncationRows(*(np.array(column) for column in zip(*params, strict=True))))
    kept = np.where(weights.numpy() >= thresholds[:, None], weights.numpy(), 0)
    np.testing.assert_allclose(sums, block_sums(torch.from_numpy(kept)), rtol=1e-5)
    return [set(np.flatnonzero(row).tolist()) for row in kept]


@pytest.mark.parametrize("vocab_size", [V, 700, 6000])
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        *[(0, 1.0, 0.0), (1, 1.0, 0.0), (5, 1.0, 0.0), (400, 1.0, 0.0), (10**6, 0.9, 0.0), (0, 0.5, 0.0), (0, 0.95, 0.0)],
        *[
            (0, 0.0001, 0.0),
            (0, 0.9999, 0.0),
            (5000, 1.0, 0.0),
            (0, 1.0, 0.3),
            (0, 1.0, 1.0),
            (30, 0.8, 0.0),
            (300, 0.8, 0.01),
            (0, 0.9, 0.02),
            (20, 0.7, 0.1),
        ],
    ],
)
def test_truncation_keeps_what_the_reference_keeps(vocab_size, scale, top_k, top_p, min_p):
    logits = (np.random.default_rng(vocab_size).standard_normal(vocab_size) * scale).astype(np.float32)
    weights = (torch.from_numpy(logits) - float(logits.max())).double().exp().float()[None]

    assert kept_ids(weights, (top_k, top_p, min_p)) == [kept_by_reference(logits, top_k, top_p, min_p)]


def test_truncation_keeps_ties_with_the_last_token():
    assert kept_ids(torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.1]]), (2, 1.0, 0.0)) == [{0, 1, 2, 3}]


def test_rows_are_truncated_each_by_its_own_parameters():
    """Flat and peaked rows, wide and narrow candidate sets, and rows that cut nothing, in one batch."""
    rng = np.random.default_rng(5)
    scales = [0.0, 0.01, 0.5, 2.0, 4.0, 8.0]
    params = [
        (0, 1.0, 0.0),
        (0, 0.97, 0.0),
        (3, 1.0, 0.0),
        (9000, 0.5, 0.0),
        (0, 0.9, 0.3),
        (50, 0.9, 0.05),
        (10**9, 1.0, 1e-6),
    ]
    cases = [(scale, each) for scale in scales for each in params]
    logits = np.stack([rng.standard_normal(10_000) * scale for scale, _ in cases]).astype(np.float32)
    weights = torch.from_numpy(np.exp((logits - logits.max(1, keepdims=True)).astype(np.float64)).astype(np.float32))

    found = kept_ids(weights, *(each for _, each in cases))

    assert found == [kept_by_reference(row, *each) for row, (_, each) in zip(logits, cases, strict=True)]


# --- Draw ---


def draws(sampling, logits, count):
    """Sample `count` positions of one request at once: one row per position."""
    rows = [(sampling, [1] * (1 + n), []) for n in range(64)]
    found = []
    for start in range(0, count, 64):
        shifted = [(SamplingSpec(**{**_fields(s), "seed": s.seed + start}), p, o) for s, p, o in rows]
        found += Bench(*shifted).sample([logits] * 64).token_ids.tolist()
    return np.array(found[:count])


def _fields(sampling):
    return {name: getattr(sampling, name) for name in SamplingSpec.__dataclass_fields__}


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_draws_follow_the_distribution(temperature):
    """Chi-square with 9 degrees of freedom: 27.9 is exceeded once in a thousand; the seed is fixed."""
    logits = np.full(V, -math.inf, np.float32)
    logits[:10] = np.linspace(0, 2, 10)

    counts = np.bincount(draws(SamplingSpec(temperature=temperature, seed=1234), logits, 6400), minlength=V)

    expected = np.exp(logits[:10] / temperature)
    expected = expected / expected.sum() * 6400
    assert counts[10:].sum() == 0
    assert ((counts[:10] - expected) ** 2 / expected).sum() < 27.9


@pytest.mark.parametrize("vocab_size", [700, 768])
def test_draws_follow_the_distribution_over_blocks_of_ids(vocab_size):
    """Chi-square over 7 cells, 22.5 once in a thousand: ids within one block and in others, the last one not whole."""
    weights = np.zeros(vocab_size, np.float32)
    ids = [0, 1, 255, 256, 300, 600, 699]
    weights[ids] = [1, 2, 3, 4, 5, 6, 7]
    rows = torch.from_numpy(np.tile(weights, (5600, 1)))

    found = draw(rows, block_sums(rows), np.zeros(5600, np.float32), np.arange(5600), np.full(5600, 11))

    expected = weights[ids] / weights.sum() * 5600
    counts = np.bincount(found, minlength=vocab_size)
    assert counts[ids].sum() == 5600
    assert ((counts[ids] - expected) ** 2 / expected).sum() < 22.5


def test_draws_survive_the_rounding_of_another_batch():
    """Logits that differ by 1e-5, as they do between batches, over a vocabulary with a heavy tail."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.standard_normal((400, 5000)).astype(np.float32) * 2)
    moved = logits + torch.from_numpy(rng.uniform(-1e-5, 1e-5, logits.shape).astype(np.float32))
    seeds, positions, temperature = np.arange(400), np.full(400, 3), torch.ones(400)

    weights = [weigh_(each, each.amax(1), temperature) for each in (logits, moved)]
    nothing_cut = np.zeros(400, np.float32)

    drawn = [draw(each, block_sums(each), nothing_cut, seeds, positions) for each in weights]

    assert (drawn[0] == drawn[1]).all()


def test_same_seed_and_position_give_the_same_token_in_any_batch():
    rng = np.random.default_rng(0)
    specs = [SamplingSpec(seed=i, top_p=0.9 if i % 2 else 1.0, top_k=i % 5, temperature=0.5 + i / 10) for i in range(12)]
    rows = [(sampling, [1] * (i + 1), []) for i, sampling in enumerate(specs)]
    logits = rng.standard_normal((12, V)).astype(np.float32)

    together = Bench(*rows).sample(logits).token_ids.tolist()

    alone = [int(Bench(row).sample(logits[i]).token_ids[0]) for i, row in enumerate(rows)]
    assert together == alone


def test_parameters_of_other_rows_change_nothing():
    """Requests of every kind, sampled together in two orders and alone."""
    rng = np.random.default_rng(1)
    kinds = [{}, {"top_p": 0.7}, {"top_k": 40}, {"min_p": 0.02}, {"repetition_penalty": 1.5}, {"logit_bias": {7: 4.0}}]
    kinds += [{"bad_words": ((3,), (4, 5))}, {"allowed_token_ids": tuple(range(0, 3000, 3))}, {"num_logprobs": 3}]
    kinds += [{"min_tokens": 9, "stop_token_ids": (8,)}, {"temperature": 0.0}, {"top_p": 0.99, "temperature": 2.0}]
    rows = [(SamplingSpec(**{"seed": i, **kind}), [1] * (i + 1), [4]) for i, kind in enumerate(kinds)]
    logits = rng.standard_normal((len(rows), 3000)).astype(np.float32) * 2

    together = Bench(*rows, vocab_size=3000).sample(logits).token_ids
    reversed_order = Bench(*rows[::-1], vocab_size=3000).sample(logits[::-1]).token_ids[::-1]
    alone = [int(Bench(row, vocab_size=3000).sample(logits[i]).token_ids[0]) for i, row in enumerate(rows)]

    assert together.tolist() == reversed_order.tolist() == alone


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 3, "min_p": 0.1}, {"num_logprobs": 2}])
def test_a_row_of_which_nothing_is_left_disturbs_no_other(fields):
    """A request can forbid every token: it fails, and the others' tokens are what they were."""
    nothing = SamplingSpec(seed=1, allowed_token_ids=(3,), logit_bias={3: -math.inf}, **fields)
    others = [(SamplingSpec(seed=2, top_p=0.9), [1], []), (SamplingSpec(temperature=0.0), [1], [])]
    logits = np.random.default_rng(2).standard_normal((3, V)).astype(np.float32)

    sampled = Bench((nothing, [1], []), *others).sample(logits)

    [(row, error)] = sampled.failures
    assert (row, type(error)) == (0, InvalidRequest)
    assert "Nothing is left to sample" in error.message
    assert sampled.token_ids[1:].tolist() == Bench(*others).sample(logits[1:]).token_ids.tolist()


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 3, "min_p": 0.1}])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_no_numbers_fails_alone(fields, value):
    rows = [(SamplingSpec(seed=1, **fields), [1], []), (SamplingSpec(temperature=0.0), [1], [])]
    logits = np.random.default_rng(2).standard_normal((2, V)).astype(np.float32)
    logits[0, 7] = value

    sampled = Bench(*rows).sample(logits)

    [(row, error)] = sampled.failures
    assert (row, type(error)) == (0, InternalError)
    assert sampled.token_ids[1] == logits[1].argmax()


def test_resumed_request_draws_the_same_noise():
    """Prompt and output are divided differently after a resume elsewhere; the absolute position is what counts."""
    logits = np.zeros(V, np.float32)

    first = Bench((SamplingSpec(seed=9), [1, 2], [3, 4])).sample(logits).token_ids
    resumed = Bench((SamplingSpec(seed=9), [1, 2, 3, 4], [])).sample(logits).token_ids

    assert first.tolist() == resumed.tolist()


# --- Processors ---


def spec(**fields):
    return SamplingSpec(temperature=0.0, **fields)


@pytest.mark.parametrize(
    ("sampling", "logits", "prompt", "output", "expected"),
    [
        (spec(allowed_token_ids=(3, 8)), peaks(_5=9, _8=2), [1], [], 8),
        (spec(logit_bias={6: 5.0}), peaks(_5=4), [1], [], 6),
        (spec(logit_bias={5: -100.0}), peaks(_5=4, _6=1), [1], [], 6),
        (spec(min_tokens=2, stop_token_ids=(7,)), peaks(_2=9, _7=8, _6=1), [1], [4], 6),
        (spec(min_tokens=2, stop_token_ids=(7,)), peaks(_2=9, _7=8, _6=1), [1], [4, 4], 2),
        (spec(bad_words=((5,),)), peaks(_5=9, _6=1), [1], [], 6),
        (spec(bad_words=((4, 5),)), peaks(_5=9, _6=1), [1], [4], 6),
        (spec(bad_words=((4, 5),)), peaks(_5=9, _6=1), [4], [], 5),
        (spec(bad_words=((4, 5),)), peaks(_5=9, _6=1), [1], [3], 5),
        (spec(repetition_penalty=2.0), peaks(_5=4, _6=3), [5], [], 6),
        (spec(repetition_penalty=2.0), peaks(_5=4, _6=3), [1], [5], 6),
        (spec(repetition_penalty=0.5), np.full(V, -1.0), [9], [], 9),
        (spec(frequency_penalty=1.0), peaks(_5=4, _6=2.5), [5, 5], [5], 5),
        (spec(frequency_penalty=1.0), peaks(_5=4, _6=2.5), [1], [5, 5], 6),
        (spec(presence_penalty=1.0), peaks(_5=4, _6=2.5), [1], [5, 5], 5),
        (spec(presence_penalty=2.0), peaks(_5=4, _6=2.5), [1], [5], 6),
    ],
)
def test_processor_changes_the_choice(sampling, logits, prompt, output, expected):
    assert greedy_of(sampling, logits, prompt, output) == expected


def test_penalties_count_tokens_sampled_since():
    bench = Bench((spec(frequency_penalty=1.0), [1], []), (spec(), [1], []))
    chosen = []
    for _ in range(4):
        tokens = bench.sample([peaks(_5=3, _6=2.5)] * 2).token_ids
        bench.batch.append_sampled(bench.slots, tokens)
        chosen.append(tokens.tolist())

    assert chosen == [[5, 5], [6, 5], [5, 5], [6, 5]]


def thinker(budget, end=(30, 31, 32), start=(), **fields):
    return spec(thinking_token_budget=budget, thinking_start_ids=start, thinking_end_ids=end, **fields)


@pytest.mark.parametrize(
    ("sampling", "output", "expected"),
    [
        (thinker(2), [4], 5),  # not yet
        (thinker(2), [4, 4], 30),
        (thinker(2), [4, 4, 30], 31),
        (thinker(2), [4, 4, 30, 31], 32),
        (thinker(2), [4, 4, 30, 31, 32], 5),  # written
        (thinker(2), [4, 4, 30, 31, 32, 30], 5),
        (thinker(0), [], 30),
        (thinker(0), [30], 31),
        (thinker(2, end=(30,)), [4, 4], 30),
        (thinker(2, end=(30,)), [4, 4, 30], 5),
        # ended by the model itself, in time
        (thinker(3), [30, 31, 32], 5),
        (thinker(4), [30, 31, 32, 7], 5),
        # half of the end is there: the rest is written
        (thinker(2), [4, 30], 31),
        (thinker(2), [4, 30, 31], 32),
        (thinker(2), [4, 30, 31, 32], 5),
        (thinker(2), [30, 31], 32),
        (thinker(2), [31, 30], 31),
        # the end overlaps itself
        (thinker(3, end=(30, 31, 30, 32)), [30, 31, 30], 32),
        (thinker(3, end=(30, 30, 32)), [30, 30, 30], 32),
        # only reasoning that the output has opened, counted from there
        (thinker(1, start=(20, 21)), [20, 21], 5),
        (thinker(1, start=(20, 21)), [20, 21, 4], 30),
        (thinker(0, start=(20, 21)), [20, 21], 30),
        (thinker(0, start=(20, 21)), [20], 5),
        (thinker(1, start=(20, 21)), [20, 4, 4], 5),
        (thinker(1, start=(20, 21)), [4, 20, 21, 4], 5),
        # nothing else matters
        (thinker(1, logit_bias={30: -100.0}), [4], 30),
        (thinker(1, allowed_token_ids=(5, 6)), [4], 30),
        (thinker(1, bad_words=((30,),)), [4], 30),
        (thinker(1, min_tokens=9, stop_token_ids=(30,)), [4], 30),
        (thinker(1, repetition_penalty=2.0), [4], 30),
    ],
)
def test_reasoning_is_ended_at_its_budget(sampling, output, expected):
    assert greedy_of(sampling, peaks(_5=9), [30, 31, 32, 20, 21], output) == expected


def test_only_rows_with_a_budget_have_their_reasoning_ended():
    bench = Bench((spec(), [1], []), (thinker(1), [1, 1], []), (thinker(3, end=(40,)), [1], []))
    drawn = Bench((SamplingSpec(thinking_token_budget=1, thinking_end_ids=(30,), seed=3), [1], [4]))
    chosen = []
    for _ in range(6):
        tokens = bench.sample([peaks(_5=9)] * 3).token_ids
        bench.batch.append_sampled(bench.slots, tokens)
        chosen.append(tokens.tolist())

    assert [*zip(*chosen, strict=True)] == [(5,) * 6, (5, 30, 31, 32, 5, 5), (5, 5, 5, 40, 5, 5)]
    assert drawn.sample(peaks(_5=9)).token_ids.tolist() == [30]


@pytest.mark.parametrize("num_tokens", range(7))
def test_an_end_that_a_preemption_interrupts_is_written_once(num_tokens):
    output = [5, 5, 30, 31, 32, 5, 5][:num_tokens]

    while len(output) < 7:
        output.append(greedy_of(thinker(2), peaks(_5=9), [1], output))

    assert output == [5, 5, 30, 31, 32, 5, 5]


def test_grammar_bitmask_masks_its_row_only():
    bench = Bench((spec(), [1], []), (spec(), [1], []))
    bitmask = np.zeros((1, 2), np.uint32)
    bitmask[0, 1] = 1 << (40 - 32)
    tokens = bench.sample([peaks(_5=3)] * 2, GrammarRows(np.array([1]), bitmask)).token_ids

    assert tokens.tolist() == [5, 40]


def test_removed_slot_leaves_nothing_behind():
    bench = Bench((spec(logit_bias={6: 50.0}, num_logprobs=1, repetition_penalty=2.0), [1], []))
    slot = bench.batch.remove(0)
    bench.sampler.remove(slot)
    request = NewRequest(1, "1", np.array([5]), 1, 0, 1, np.zeros(1, np.int64), spec())
    bench.sampler.add(bench.batch.add(request), request)

    sampled = bench.sample(peaks(_5=1))

    assert (sampled.token_ids.tolist(), sampled.logprobs) == ([5], ())


# --- Logprobs ---


def test_logprobs_are_those_of_the_raw_distribution():
    logits = peaks(_5=3, _6=2, _7=1)
    bench = Bench((spec(), [1], []), (spec(logit_bias={6: 50.0}, num_logprobs=2), [1], []))

    sampled = bench.sample([logits] * 2)

    raw = torch.tensor(logits).log_softmax(0).numpy()
    [(rows, found)] = sampled.logprobs
    assert rows.tolist() == [1]
    assert found.token_ids.tolist() == [[6, 5, 6]]
    np.testing.assert_allclose(found.logprobs, [raw[[6, 5, 6]]], rtol=1e-6)
    assert found.ranks.tolist() == [2]


def test_logprobs_of_the_whole_vocabulary():
    bench = Bench((spec(num_logprobs=-1), [1], []))

    [(_, rows)] = bench.sample(np.arange(V)).logprobs

    assert rows.token_ids[0, 1:].tolist() == list(range(V - 1, -1, -1))
    assert np.exp(rows.logprobs[0, 1:]).sum() == pytest.approx(1.0, abs=1e-5)


def test_each_row_costs_the_logprobs_it_asked_for():
    specs = [spec(num_logprobs=1), spec(num_logprobs=-1), spec(), spec(num_logprobs=0), spec(num_logprobs=1)]
    bench = Bench(*((each, [1], []) for each in specs))

    found = bench.sample([np.arange(V)] * 5).logprobs

    assert [(rows.tolist(), each.token_ids.shape) for rows, each in found] == [
        ([0, 4], (2, 2)),
        ([1], (1, V + 1)),
        ([3], (1, 1)),
    ]


def test_logprobs_of_chosen_ids_stand_in_their_order():
    logits = peaks(_5=3, _6=2, _7=1)
    bench = Bench((spec(logprob_token_ids=(7, 40)), [1], []), (spec(num_logprobs=1, logprob_token_ids=(6, 5)), [1], []))

    [(rows, found)] = bench.sample([logits] * 2).logprobs

    raw = torch.tensor(logits).log_softmax(0).numpy()
    assert rows.tolist() == [0, 1]
    assert found.token_ids.tolist() == [[5, 7, 40], [5, 6, 5]]
    np.testing.assert_allclose(found.logprobs, raw[found.token_ids.astype(int)], rtol=1e-6)
    assert found.ranks.tolist() == [1, 1]


@pytest.mark.parametrize(("bias", "rank"), [({5: 0.0}, 1), ({6: 50.0}, 2), ({8: 50.0}, 4), ({9: 50.0}, 4), ({40: 50.0}, 6)])
@pytest.mark.parametrize("num_logprobs", [0, 2, -1])
def test_rank_counts_the_tokens_that_are_more_likely(bias, rank, num_logprobs):
    logits = peaks(_5=5, _6=4, _7=3, _8=2, _9=2)

    [(_, found)] = Bench((spec(logit_bias=bias, num_logprobs=num_logprobs), [1], [])).sample(logits).logprobs

    assert found.ranks.tolist() == [rank]
