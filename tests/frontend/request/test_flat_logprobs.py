"""FlatLogprobs: a sequence of the same dicts, kept in flat lists."""

import copy

import pytest

from tests.frontend.request.test_logprobs import rows_of
from tetrad.frontend.request.logprobs import flat_positions_of, positions_of
from tetrad.frontend.request.outputs import CompletionOutput, RequestOutput, merge, places_of
from tetrad.frontend.request.position_logprobs import FlatLogprobs, Logprob, actual_logprobs
from tetrad.frontend.request.steps import LogprobRows
from tetrad.logprobs import FlatLogprobs as Public

TEXTS = ["a", "b", "c"]


@pytest.fixture
def flat():
    """Three positions of a sampled token and two candidates, of which one is the token itself."""
    return flat_positions_of(rows_of([5, 6, 7], 5, 9), str, TEXTS)


@pytest.fixture
def dicts():
    return positions_of(rows_of([5, 6, 7], 5, 9), str, TEXTS)


def test_positions_are_the_same_dicts(flat, dicts):
    assert list(flat) == dicts
    assert [flat[0], flat[-1]] == [dicts[0], dicts[-1]]
    assert len(flat) == 3
    assert Public is FlatLogprobs


def test_columns_have_every_candidate(flat):
    assert flat.start_indices == [0, 3, 6]
    assert flat.end_indices == [3, 6, 9]
    assert flat.token_ids == [5, 5, 9, 6, 5, 9, 7, 5, 9]
    assert flat.ranks == [1, 1, 2] * 3
    assert flat.logprobs == [-0.5] * 9
    assert flat.decoded_tokens == ["a", "5", "9", "b", "5", "9", "c", "5", "9"]


@pytest.mark.parametrize(
    "part", [slice(1, None), slice(0, 2), slice(None, None, 2), slice(5, 9), slice(None, None, -1)], ids=str
)
def test_slices_are_flat_and_stand_alone(flat, dicts, part):
    found = flat[part]

    assert isinstance(found, FlatLogprobs)
    assert list(found) == dicts[part]
    assert found.start_indices[:1] in ([], [0])


def test_positions_are_appended_in_any_form(flat, dicts):
    grown = FlatLogprobs()
    grown.append(None)
    grown.extend(dicts[:1])
    grown += flat[1:]

    assert list(grown) == [{}, *dicts]
    assert grown + flat == FlatLogprobs.__add__(grown, dicts)
    assert grown.of_actual == actual_logprobs(dicts)
    assert list(copy.deepcopy(grown)) == [{}, *dicts]


def test_positions_stay_as_they_are(flat):
    with pytest.raises(TypeError, match="cannot be replaced"):
        flat[0] = {}
    with pytest.raises(TypeError, match="cannot be deleted"):
        del flat[0]
    with pytest.raises(TypeError, match="cannot be inserted"):
        flat.insert(0, {})


def test_texts_of_wide_positions_are_found_when_they_are_read():
    asked = []

    def text_of(token_id):
        asked.append(token_id)
        return str(token_id)

    ids = list(range(2000))
    flat = flat_positions_of(LogprobRows([7, *ids] * 2, [-0.5] * 4002, [8, 8], 2001), text_of, ["x", "y"])
    part = flat[1:] + flat[:1]

    assert asked == [7, 7]
    assert part.decoded_tokens[:3] == ["y", "0", "1"]
    assert flat[0][1999] == Logprob(-0.5, 2000, "1999")
    assert flat[0][7] == Logprob(-0.5, 8, "x")


def test_outputs_of_a_slow_reader_are_joined(flat, dicts):
    def output(positions, token_ids):
        each = CompletionOutput(0, "", token_ids, 0.0, positions)
        return RequestOutput("r", None, [1], None, [each], finished=False)

    older = output(flat[:1], [5])
    merge(older, output(flat[1:], [6, 7]), places_of(older), aggregate=True)
    first = output(None, [])
    merge(first, output(flat, [5, 6, 7]), places_of(first), aggregate=True)

    assert list(older.outputs[0].logprobs) == dicts
    assert first.outputs[0].logprobs is flat
