"""The list of parts of a decode step covers each request's visible keys once, in order, and the kernel equals its reference."""

import numpy as np
import pytest
import torch

from tetrad.worker_svc.kernels.decode_parts import DecodeParts, PartSizes, list_parts, list_parts_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MAKERS = [list_parts, list_parts_reference]


def sizes_of(*, num_kv_heads=2, group=3, num_wanted=12, block_keys=16):
    return PartSizes(num_kv_heads, group, num_wanted, block_keys)


def keys_of(lengths):
    return torch.tensor(lengths, dtype=torch.int32, device=DEVICE)


def listed(parts: DecodeParts) -> list[list[int]]:
    """Return the rows of the list that are parts; these come first."""
    rows = parts.table.tolist()
    found = [row for row in rows if row[0] >= 0]
    assert found == rows[: len(found)]
    return found


def parts_of(make, lengths, *, window=0, **sizes):
    return listed(make(keys_of(lengths), sizes_of(**sizes), window=window))


def random_case(seed):
    draw = np.random.default_rng(seed)
    num_requests = int(draw.choice([1, 2, 5, 33, 130, 300]))
    lengths = draw.integers(0, int(draw.choice([3, 100, 5000])), num_requests)
    lengths[draw.random(num_requests) < draw.choice([0.0, 0.5])] = 0
    lengths[draw.integers(num_requests)] *= int(draw.choice([1, 20]))
    window = int(draw.choice([0, 1, 100, 4096]))
    sizes = sizes_of(
        group=int(draw.choice([1, 3, 8, 71])),
        num_kv_heads=int(draw.choice([1, 5])),
        num_wanted=int(draw.choice([1, 7, 132])),
        block_keys=int(draw.choice([16, 32, 64, 128])),
    )
    return keys_of(lengths), sizes, window


@pytest.mark.parametrize("seed", range(40))
def test_the_kernel_equals_its_reference(seed):
    num_keys, sizes, window = random_case(seed)

    found, expected = (make(num_keys, sizes, window=window) for make in MAKERS)

    assert listed(found) == listed(expected)
    assert found.table.shape == expected.table.shape == (len(num_keys) + sizes.num_wanted, 5)
    assert torch.equal(found.tickets, expected.tickets)
    assert not found.tickets.any()


@pytest.mark.parametrize("seed", range(200))
def test_parts_cover_the_visible_keys_of_each_request_once_and_in_order(seed):
    num_keys, sizes, window = random_case(seed)
    shares = iter(listed(list_parts_reference(num_keys, sizes, window=window)))

    number = 0
    for request, total in enumerate(num_keys.tolist()):
        owner, begin, end, first, count = next(shares)
        assert (owner, begin, first) == (request, max(total - window, 0) if window else 0, number)
        for _ in range(count - 1):
            assert end > begin
            previous = end
            owner, begin, end, *rest = next(shares)
            assert (owner, begin, rest) == (request, previous, [first, count])
        assert end == total
        number += count
    assert next(shares, None) is None


@pytest.mark.parametrize("make", MAKERS)
def test_a_long_context_among_short_ones_is_divided_and_short_ones_are_not(make):
    counts = [rows[-1] for rows in parts_of(make, [40, 3000, 60, 90])]

    assert counts == [1, *[12] * 12, 1, 1]


@pytest.mark.parametrize("make", MAKERS)
def test_a_single_context_has_as_many_parts_as_fill_the_device(make):
    assert [row[1:3] for row in parts_of(make, [3072])] == [[begin, begin + 256] for begin in range(0, 3072, 256)]


@pytest.mark.parametrize("make", MAKERS)
def test_contexts_that_fill_the_device_are_not_divided(make):
    """As many requests as wanted parts."""
    assert parts_of(make, [5000] * 12) == [[number, 0, 5000, number, 1] for number in range(12)]


@pytest.mark.parametrize("make", MAKERS)
def test_parts_of_a_request_have_about_the_same_number_of_keys(make):
    """7 wanted parts: an equal share is 1429 keys, so each context has 2 parts; they are whole tiles of 16 keys."""
    ends = [row[1:3] for row in parts_of(make, [2000] * 5, num_wanted=7)]

    assert ends == [[0, 1008], [1008, 2000]] * 5


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("keys", "count"), [(0, 1), (1, 1), (127, 1), (128, 2), (192, 3)])
def test_few_keys_are_not_divided(make, keys, count):
    assert len(parts_of(make, [keys], group=1)) == count


@pytest.mark.parametrize("make", MAKERS)
def test_large_groups_of_heads_have_fewer_parts_because_their_merge_takes_longer(make):
    counts = [len(parts_of(make, [8192], group=group, num_wanted=132)) for group in (1, 8, 32, 128)]

    assert counts == [86, 32, 16, 8]


@pytest.mark.parametrize("make", MAKERS)
def test_a_window_leaves_only_the_last_keys(make):
    assert parts_of(make, [1000, 5], window=100) == [[0, 900, 1000, 0, 1], [1, 0, 5, 1, 1]]


@pytest.mark.parametrize("make", MAKERS)
def test_a_request_without_keys_has_one_empty_part_so_that_its_row_is_written(make):
    assert parts_of(make, [0, 7, 0]) == [[0, 0, 0, 0, 1], [1, 0, 7, 1, 1], [2, 0, 0, 2, 1]]


def test_numbers_of_keys_may_be_a_column_of_the_step_s_rows():
    rows = torch.arange(20, dtype=torch.int32, device=DEVICE).view(4, 5)

    assert listed(list_parts(rows[:, 4], sizes_of())) == listed(list_parts_reference(rows[:, 4].contiguous(), sizes_of()))


def test_two_programs_per_processor_are_wanted():
    sizes = PartSizes.on_device(32, 8, 128, torch.bfloat16, torch.bfloat16, DEVICE, 132)

    assert (sizes.num_kv_heads, sizes.group, sizes.num_wanted) == (8, 4, 33)
