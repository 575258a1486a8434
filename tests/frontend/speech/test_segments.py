"""Segments: tokens between timestamps, within their piece."""

import pytest

from tetrad.frontend.speech.segments import split_at_times

FIRST = 100
END = 99


def split(ids, *, logprobs=None, first=FIRST, start_s=0.0, duration_s=30.0):
    return split_at_times(
        ids,
        [-1.0] * len(ids) if logprobs is None else logprobs,
        first_timestamp_id=first,
        step_s=0.02,
        start_s=start_s,
        duration_s=duration_s,
        ends={END},
    )


def times(segments):
    return [(each.start_s, each.end_s, each.token_ids) for each in segments]


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([1, 2, 200, 200, 3, 300, END], [(0.0, 2.0, [1, 2]), (2.0, 4.0, [3])]),
        ([1, 200, 250, 2, 300], [(0.0, 2.0, [1]), (3.0, 4.0, [2])]),
        ([1, 200, 2], [(0.0, 2.0, [1]), (2.0, 30.0, [2])]),
        ([1, 2, END], [(0.0, 30.0, [1, 2])]),
        ([100, 1, 200], [(0.0, 2.0, [1])]),
        ([200, 200, END], []),
        ([], []),
    ],
    ids=["pairs", "a pause", "no last time", "no times", "a first time", "no text", "nothing"],
)
def test_times_split_the_tokens(ids, found):
    assert times(split(ids)) == found


def test_a_piece_starts_somewhere_in_its_recording():
    assert times(split([1, 200], start_s=29.5)) == [(29.5, 31.5, [1])]


def test_times_stay_inside_their_piece_and_in_order():
    assert times(split([1, 1600, 2, 150, 3], duration_s=10.0)) == [(0.0, 10.0, [1]), (10.0, 10.0, [2]), (10.0, 10.0, [3])]


def test_the_average_counts_the_tokens_of_the_segment():
    [segment, _] = split([1, 2, 200, 3], logprobs=[-1.0, -2.0, -6.0, -5.0])

    assert segment.avg_logprob == pytest.approx(-3.0)


def test_a_model_without_times_has_one_segment():
    assert times(split([1, 200, END], first=None)) == [(0.0, 30.0, [1, 200])]
