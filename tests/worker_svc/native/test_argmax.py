"""Greedy rows without further parameters: the argmax, computed during the product."""

import gguf
import numpy as np
import pytest
import torch

from tests.worker_svc.native.native_programs import NO_HEADS, RUNNABLE, product, team_of
from tests.worker_svc.native.test_products import activations, drawn, quantized
from tests.worker_svc.sampler.sampler_bench import Bench
from tetrad.services.errors import InternalError
from tetrad.worker_svc.core.plan import GrammarRows, SamplingSpec
from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.native.operands import Epilogue
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.weights import pack_float, pack_gguf

GREEDY = SamplingSpec(temperature=0.0)


@pytest.fixture(scope="module", params=RUNNABLE)
def team(request):
    return team_of(request.param, 2)


def top(team, matrix, x):
    builder = ProgramBuilder(team)
    source, tops = builder.buffer(x.shape[1]), builder.buffer(2 * matrix.num_spans)
    builder.linear(matrix, None, source, tops, epilogue=Epilogue.TOP)
    program = builder.build("top", NO_HEADS)
    program.run(len(x), given={source: x.contiguous()})
    return program.top(tops, len(x))


def assert_like_the_whole_product(team, matrix, x):
    ids, values = argmax(product(team, matrix, x))

    found_ids, found_values = top(team, matrix, x)

    np.testing.assert_array_equal(found_ids, ids)
    np.testing.assert_array_equal(found_values, values)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 32, 33, 333, 1000])
@pytest.mark.parametrize("kind", [None, gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0], ids=str)
def test_the_largest_is_that_of_the_whole_product_to_the_last_bit(team, size, kind):
    matrix = pack_float(team, drawn(size, 64)) if kind is None else pack_gguf(team, quantized(kind, size, 64))
    for num_rows in (1, 7, 8, 9, 70):
        assert_like_the_whole_product(team, matrix, activations(num_rows, 64, seed=num_rows))


def test_all_outputs_are_negative(team):
    """What fills a matrix's last panel up gives 0, which is no output."""
    assert_like_the_whole_product(team, pack_float(team, -drawn(37, 8).abs()), drawn(3, 8, seed=1).abs())


@pytest.mark.parametrize("places", [(70, 71, 150), (47, 48), (15, 16, 32), (190, 199)], ids=str)
def test_the_lowest_of_equal_ones(team, places):
    weight = torch.zeros(200, 4)
    weight[list(places)] = 1.0

    ids, values = top(team, pack_float(team, weight), torch.ones(2, 4))

    assert ids.tolist() == [places[0]] * 2
    assert values.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("value", [1.0, torch.nan], ids=str)
@pytest.mark.parametrize("places", [(3, 35), (35, 3_000), (2_900, 2_932, 2_964), (31, 32)], ids=str)
def test_the_lowest_of_equal_ones_among_many_panels(team, places, value):
    """An item of a large matrix has many panels; equal ones stand in one lane, or where the later one has the lower lane."""
    weight = torch.zeros(5_000, 4)
    weight[list(places)] = value

    ids, values = top(team, pack_float(team, weight), torch.ones(2, 4))

    assert ids.tolist() == [places[0]] * 2
    np.testing.assert_array_equal(values, [4 * value] * 2)


def test_nothing_is_larger_than_nothing(team):
    """Where all outputs are -inf the first one is the largest."""
    ids, values = top(team, pack_float(team, torch.full((100, 4), -torch.inf)), torch.ones(2, 4))

    assert ids.tolist() == [0, 0]
    assert np.isneginf(values).all()


@pytest.mark.parametrize("places", [(0,), (15,), (16,), (40, 90), (99,)], ids=str)
def test_what_is_no_number_is_the_largest(team, places):
    """The first of them, whatever else there is: its request fails, and the row beside it does not."""
    weight = drawn(100, 8)
    weight[list(places), 3] = torch.nan
    x = drawn(2, 8, seed=1)

    ids, values = top(team, pack_float(team, weight), x)

    assert ids.tolist() == [places[0]] * 2
    assert np.isnan(values).all()


def test_a_broken_row_fails_alone(team):
    x = drawn(3, 8, seed=1)
    x[1, 2] = torch.nan
    bench = Bench(*[(GREEDY, [1], [])] * 3)

    sampled = bench.sampler.take(*top(team, pack_float(team, drawn(100, 8)), x))

    [(row, error)] = sampled.failures
    assert (row, type(error)) == (1, InternalError)


def test_greedy_rows_need_no_logits():
    bench = Bench((GREEDY, [1], []), (SamplingSpec(temperature=0.0, top_k=5, seed=3), [1, 2], [3]))

    assert not bench.sampler.needs_logits(bench.slots, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.5},
        {"num_logprobs": 0},
        {"logprob_token_ids": (4,)},
        {"min_tokens": 3},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {3: 1.0}},
        {"allowed_token_ids": (1, 2)},
        {"bad_words": ((5,),)},
        {"thinking_token_budget": 4, "thinking_end_ids": (7,)},
    ],
    ids=str,
)
def test_what_changes_or_reports_logits_needs_them_while_it_runs(fields):
    sampling = SamplingSpec(**{"temperature": 0.0, **fields})
    bench = Bench((GREEDY, [1], []), (sampling, [1], []))

    assert bench.sampler.needs_logits(bench.slots, None)
    assert not bench.sampler.needs_logits(bench.slots[:1], None)

    bench.sampler.remove(bench.slots[1])
    assert not bench.sampler.needs_logits(bench.slots[:1], None)


def test_a_grammar_needs_logits():
    bench = Bench((GREEDY, [1], []))

    assert bench.sampler.needs_logits(bench.slots, GrammarRows(np.array([0]), np.zeros((1, 2), np.uint32)))
