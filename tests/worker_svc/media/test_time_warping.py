"""Time warping: paths and medians are those of transformers' loops."""

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from tetrad.worker_svc.media.time_warping import median_filtered, token_starts, warped


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (5, 3), (3, 50), (20, 100), (40, 40)])
@pytest.mark.parametrize("digits", [0, 9], ids=["ties", "no ties"])
def test_a_path_is_that_of_transformers(size, digits):
    costs = np.round(np.random.default_rng(sum(size)).normal(size=size), digits)
    rows, columns = _dynamic_time_warping(costs)

    assert warped(costs).tolist() == columns[np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)].tolist()


@pytest.mark.parametrize("size", [(1, 3, 4, 50), (1, 2, 1, 4), (1, 1, 2, 3)])
def test_medians_are_those_of_transformers(size):
    values = torch.randn(size, generator=torch.Generator().manual_seed(1))

    assert torch.equal(median_filtered(values[0], 7), _median_filter(values, 7)[0])


def test_tokens_begin_where_their_weights_are():
    weights = torch.full((2, 3, 30), 0.01)
    for token, position in enumerate((2, 11, 23)):
        weights[:, token, position - 2 : position + 6] = 1.0

    starts = token_starts(weights, 3)

    assert starts[0] == 0
    assert abs(starts[1:] - [9, 21]).max() <= 2


def test_one_token_begins_at_the_beginning():
    assert token_starts(torch.rand(2, 1, 20), 7).tolist() == [0]
