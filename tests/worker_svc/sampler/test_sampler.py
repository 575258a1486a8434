"""The sampler row by row: greedy choices, and every logits processor."""

import numpy as np
import pytest

from tests.worker_svc.sampler.sampler_bench import Bench, V, greedy_of, peaks, spec
from tetrad.worker_svc.core.plan import GrammarRows, NewRequest, SamplingSpec


def test_greedy_takes_the_lowest_id_on_ties():
    assert greedy_of(SamplingSpec(temperature=0.0), peaks(_7=3, _30=3)) == 7


def test_greedy_rows_are_greedy_beside_drawn_ones():
    bench = Bench(
        (SamplingSpec(temperature=0.0), [1], []), (SamplingSpec(seed=3), [1], []), (SamplingSpec(temperature=0.0), [1], [])
    )

    tokens = bench.sample([peaks(_4=1), np.zeros(V), peaks(_9=1)]).token_ids

    assert (tokens[0], tokens[2]) == (4, 9)


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
    request = NewRequest(1, "1", np.array([5]), 1, 0, 1, np.zeros((1, 1), np.int64), spec())
    bench.sampler.add(bench.batch.add(request), request)

    sampled = bench.sample(peaks(_5=1))

    assert (sampled.token_ids.tolist(), sampled.logprobs) == ([5], ())
