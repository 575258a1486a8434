"""Kernels that change logits before a token is chosen: each equals its reference, over odd sizes, one row and none."""

import numpy as np
import pytest
import torch

from tetrad.worker_svc.kernels import bad_words, biases, penalties, thinking_budget, token_masks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(DEVICE)


def integers(values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def bits(*values):
    """Return the bits of float64 values, as tables of int64 hold them."""
    return np.array(values).view(np.int64).tolist()


def assert_same_change(function, reference, logits, *arguments):
    """Check that both make the same of logits, and return it."""
    found, expected = logits.clone(), logits.clone()

    function(found, *arguments)
    reference(expected, *arguments)

    torch.testing.assert_close(found, expected)
    return found


@pytest.mark.parametrize("num_words", [1, 2, 4])
@pytest.mark.parametrize("rows", [[], [2], [1, 0]])
def test_token_masks(rows, num_words):
    """A vocabulary of 70 ids needs three words: fewer forbid what lies behind, more change nothing."""
    words = np.random.default_rng(1).integers(-(2**31), 2**31, (len(rows), num_words))
    masks = integers(np.concatenate([np.array(rows, np.int64).reshape(-1, 1), words], 1), torch.int32)

    found = assert_same_change(
        token_masks.apply_token_masks, token_masks.apply_token_masks_reference, normal(3, 73)[:, :70], masks
    )

    assert found.isinf().any(1).nonzero().flatten().tolist() == sorted(rows)


def test_biases_hold_until_their_position():
    entries = integers(
        [[0, 3, 2**62, *bits(1.5)], [0, 4, 7, *bits(-np.inf)], [2, 3, 8, *bits(-np.inf)], [2, 49, 9, *bits(2.0)]]
    )
    logits = normal(3, 50)

    found = assert_same_change(biases.add_biases, biases.add_biases_reference, logits, integers([7, 8, 8]), entries)

    assert (found != logits).nonzero().tolist() == [[0, 3], [2, 49]]


def test_more_biases_than_one_program_adds():
    entries = integers([[1, token_id, 9, *bits(float(token_id))] for token_id in range(300)])

    assert_same_change(biases.add_biases, biases.add_biases_reference, normal(2, 301), integers([1, 1]), entries)


TOKENS = [[9, 9, 1, 2, 3, 0, 0], [9, 9, 9, 1, 2, 3, 0], [1, 2, 3, 1, 2, 3, 3]]
SLOTS, POSITIONS, NUM_PROMPT_TOKENS = [2, 0, 1], [6, 5, 6], [2, 5, 3]


def request_columns():
    """Return tokens and columns of three requests whose outputs are (slot 0) 1 2 3, (1) 3 and (2) 1 2 3."""
    return integers(TOKENS, torch.int32), integers(SLOTS), integers(POSITIONS), integers(NUM_PROMPT_TOKENS)


@pytest.mark.parametrize(
    ("word", "masked"),
    [
        ((5,), True),
        ((3, 5), True),
        ((1, 2, 3, 5), True),
        ((2, 5), False),
        ((2, 2, 3, 5), False),
        ((9, 1, 2, 3, 5), False),  # not of the prompt
        ((0, 0, 0, 0, 0, 0, 0, 0, 0, 5), False),  # longer than all there is
    ],
)
def test_bad_words_are_masked_where_the_output_ends_with_their_lead(word, masked):
    words = integers([[0, 1, 7, *word[1:]], [1, len(word), *word]])

    logits = normal(3, 40)
    found = assert_same_change(bad_words.mask_bad_words, bad_words.mask_bad_words_reference, logits, *request_columns(), words)

    assert (found != logits).nonzero().tolist() == [[0, 7], *([[1, 5]] if masked else [])]


def test_penalties_lower_what_was_seen():
    penalised = integers([[1, 2, *bits(1.5, 0.25, 0.5)], [2, 0, *bits(0.5, 0.0, 0.0)]])
    seen, counted = torch.zeros(3, 12, dtype=torch.int32, device=DEVICE), integers([0, 0, 0], torch.int32)
    expected_seen, expected_counted = seen.clone(), counted.clone()

    penalties.count_tokens(seen, counted, *request_columns(), penalised)
    penalties.count_tokens_reference(expected_seen, expected_counted, *request_columns(), penalised)

    assert seen.tolist() == expected_seen.tolist()
    assert counted.tolist() == expected_counted.tolist() == [6, 0, 5]
    logits = normal(3, 12)
    found = assert_same_change(penalties.apply_penalties, penalties.apply_penalties_reference, logits, seen, penalised)
    assert (found != logits).nonzero().tolist() == [[1, 1], [1, 2], [1, 3], [1, 9], [2, 1], [2, 2], [2, 3], [2, 9]]


def test_penalties_count_what_has_come_since():
    """Two calls at two lengths count what one does at the last, also more tokens than one round takes in."""
    tokens = torch.randint(5, (1, 2500), dtype=torch.int32, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    penalised = integers([[0, 0, *bits(2.0, 0.0, 0.0)]])
    seen, counted = torch.zeros(1, 1030, dtype=torch.int32, device=DEVICE), integers([0], torch.int32)

    for length in (2047, 2400):
        penalties.count_tokens(seen, counted, tokens, integers([0]), integers([length]), integers([1500]), penalised)

    prompt, output = (torch.bincount(part, minlength=1030) for part in (tokens[0, :1500], tokens[0, 1500:2400]))
    assert torch.equal(seen[0].long(), 2 * output + (prompt > 0))


def test_a_row_that_saw_nothing_of_a_block_of_ids_keeps_its_logits():
    penalised = integers([[0, 0, *bits(2.0, 1.0, 1.0)]])
    seen = torch.zeros(1, 2100, dtype=torch.int32, device=DEVICE)
    seen[0, 2050] = 2
    logits = normal(1, 2100)

    found = assert_same_change(penalties.apply_penalties, penalties.apply_penalties_reference, logits, seen, penalised)

    assert (found != logits).nonzero().tolist() == [[0, 2050]]


def budget_entry(row, num_tokens, start, end, width):
    filled = (list(ids) + [7] * (width - len(ids)) for ids in (start, end))
    return [row, num_tokens, len(start), len(end), *(token_id for ids in filled for token_id in ids)]


@pytest.mark.parametrize(
    ("output", "num_tokens", "start", "end", "forced"),
    [
        ([4], 2, (), (30, 31), None),  # not yet
        ([4, 4], 2, (), (30, 31), 30),
        ([4, 4, 30], 2, (), (30, 31), 31),
        ([4, 4, 30, 31], 2, (), (30, 31), None),  # written
        ([4, 30], 2, (), (30, 31, 32), 31),  # begun
        ([4, 30, 31], 2, (), (30, 31, 32), 32),
        ([30, 31, 4], 3, (), (30, 31), None),  # ended in time
        ([30, 31], 2, (), (30, 31), None),
        ([30, 31, 30], 3, (), (30, 31, 30, 32), 32),  # overlaps itself
        ([20, 4, 4], 3, (20,), (30,), 30),
        ([4, 20, 4], 3, (20,), (30,), None),  # not opened
        ([], 0, (), (30,), 30),
    ],
)
def test_reasoning_is_ended_at_its_budget(output, num_tokens, start, end, forced):
    tokens = integers([[0] * 9, [30, 31, *output, *[30] * (7 - len(output))]], torch.int32)
    columns = tokens, integers([0, 1]), integers([3, 2 + len(output)]), integers([2, 2])
    budgets = integers([budget_entry(1, num_tokens, start, end, 4)])
    logits = normal(2, 40)

    found = assert_same_change(thinking_budget.force_ends, thinking_budget.force_ends_reference, logits, *columns, budgets)

    kept = found.isfinite().nonzero().tolist()
    assert kept[40:] == ([[1, forced]] if forced is not None else [[1, token_id] for token_id in range(40)])


def test_an_end_deep_in_a_long_reasoning_is_found():
    """In another round of 1024 places than the first."""
    tokens = torch.full((1, 2400), 4, dtype=torch.int32, device=DEVICE)
    budgets = integers([budget_entry(0, 2100, (), (30, 31), 2)])
    columns = integers([0]), integers([2100]), integers([0])

    forced = assert_same_change(
        thinking_budget.force_ends, thinking_budget.force_ends_reference, normal(1, 40), tokens, *columns, budgets
    )
    tokens[0, 1023:1025] = integers([30, 31], torch.int32)
    ended = assert_same_change(
        thinking_budget.force_ends, thinking_budget.force_ends_reference, normal(1, 40), tokens, *columns, budgets
    )

    assert (int(forced.isfinite().sum()), int(ended.isfinite().sum())) == (1, 40)
