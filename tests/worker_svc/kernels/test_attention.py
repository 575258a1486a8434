"""Paged attention: the kernels equal their reference over head sizes, groups, lengths, windows, caps and tables with holes."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from tetrad.worker_svc.kernels import decode_attention as decode
from tetrad.worker_svc.kernels import prefill_attention as prefill
from tetrad.worker_svc.kernels.attention_launch import Launch, find_launch, launch_for, prefill_block_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCK_ROWS = 16
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


class Pages:
    """Keys and values of requests in pages that are neither in order nor side by side; unused places hold NaN."""

    def __init__(self, lengths, *, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.float32):
        generator = torch.Generator().manual_seed(3)
        pages = [-(-length // block_size) for length in lengths]
        ids = torch.randperm(2 * sum(pages) + 1, generator=generator).tolist()
        self.cache = torch.full((len(ids), block_size, 2, num_kv_heads, head_dim), torch.nan)
        self.tables = torch.zeros(len(lengths), max(pages, default=0) + 1, dtype=torch.int32)
        for row, length in enumerate(lengths):
            mine = [ids.pop() for _ in range(pages[row])]
            self.tables[row, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
            flat = torch.randn(length, 2, num_kv_heads, head_dim, generator=generator)
            for place, page in enumerate(mine):
                part = flat[place * block_size : (place + 1) * block_size]
                self.cache[page, : len(part)] = part
        self.cache, self.tables = self.cache.to(DEVICE, dtype), self.tables.to(DEVICE)
        self.num_keys = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)


def queries(number, num_heads, head_dim, dtype=torch.float32):
    wide = torch.randn(number, num_heads * head_dim + 32, generator=torch.Generator().manual_seed(5))
    return wide.to(DEVICE, dtype)[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim))


def assert_equal(found, expected):
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def check_decode(lengths, *, group=3, num_splits=3, dtype=torch.float32, head_dim=64, block_size=16, **options):
    pages = Pages(lengths, head_dim=head_dim, block_size=block_size, dtype=dtype)
    arguments = (queries(len(lengths), 2 * group, head_dim, dtype), pages.cache, pages.tables, pages.num_keys)
    options = {"num_splits": num_splits, "scale": head_dim**-0.5} | options

    assert_equal(decode.decode_attention(*arguments, **options), decode.decode_attention_reference(*arguments, **options))


def check_prefill(chunks, *, group=3, dtype=torch.float32, head_dim=64, block_size=16, **options):
    """chunks: (tokens computed before, new tokens) of each request."""
    num_new = np.array([new for _, new in chunks], dtype=int)
    pages = Pages([before + new for before, new in chunks], head_dim=head_dim, block_size=block_size, dtype=dtype)
    first = torch.tensor([0, *np.cumsum(num_new)], dtype=torch.int32, device=DEVICE)
    tiles = torch.from_numpy(prefill.tiles_of(num_new, group, BLOCK_ROWS)).to(DEVICE)
    query = queries(int(num_new.sum()), 2 * group, head_dim, dtype)
    arguments = (query, pages.cache, pages.tables, first, pages.num_keys, tiles)
    options = {"scale": head_dim**-0.5} | options

    found = prefill.prefill_attention(*arguments, **options, block_rows=BLOCK_ROWS)

    assert_equal(found, prefill.prefill_attention_reference(*arguments, **options))


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_decode_over_head_sizes_and_groups(head_dim, group):
    check_decode([1, 70, 129], head_dim=head_dim, group=group)


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_prefill_over_head_sizes_and_groups(head_dim, group):
    check_prefill([(0, 1), (40, 9), (3, 20)], head_dim=head_dim, group=group)


@pytest.mark.parametrize("num_splits", [1, 2, 7])
@pytest.mark.parametrize("lengths", [[1], [0, 5, 0], [64, 65, 63], [300]])
def test_decode_over_lengths_and_splits(lengths, num_splits):
    check_decode(lengths, num_splits=num_splits)


@pytest.mark.parametrize("window", [1, 7, 64, 65, 1000])
@pytest.mark.parametrize("block_size", [4, 16])
def test_a_window_hides_older_keys(window, block_size):
    check_decode([5, 150, 64], window=window, block_size=block_size)
    check_prefill([(0, 30), (100, 11), (63, 2)], window=window, block_size=block_size)


@pytest.mark.parametrize("window", [1, 7, 65])
def test_what_a_window_has_passed_is_never_read(window):
    """Such blocks are other requests' by then: here they hold NaN."""
    pages = Pages([150, 111], block_size=4)
    arguments = (pages.tables, pages.num_keys)
    first = torch.tensor([0, 1, 12], dtype=torch.int32, device=DEVICE)
    tiles = torch.from_numpy(prefill.tiles_of(np.array([1, 11]), 3, BLOCK_ROWS)).to(DEVICE)
    query, options = queries(12, 6, 64), {"scale": 0.125, "window": window}
    expected = [
        decode.decode_attention_reference(query[:2], pages.cache, *arguments, num_splits=2, **options),
        prefill.prefill_attention_reference(query, pages.cache, pages.tables, first, pages.num_keys, tiles, **options),
    ]
    for row, position in enumerate((149, 100)):
        pages.cache[pages.tables[row, : max(0, position - window + 1) // 4].long()] = torch.nan

    found = prefill.prefill_attention(
        query, pages.cache, pages.tables, first, pages.num_keys, tiles, block_rows=BLOCK_ROWS, **options
    )

    assert_equal(decode.decode_attention(query[:2], pages.cache, *arguments, num_splits=2, **options), expected[0])
    assert_equal(found, expected[1])


def test_a_cap_bounds_scores():
    check_decode([5, 90], softcap=0.5)
    check_prefill([(0, 9), (70, 9)], softcap=0.5)


def test_a_sink_takes_weight():
    sinks = torch.tensor([-3.0, 0.0, 1.0, 5.0, 30.0, -30.0], device=DEVICE)
    for num_splits in (1, 3):
        check_decode([5, 90, 300], num_splits=num_splits, sinks=sinks, softcap=4.0)
    check_prefill([(0, 9), (70, 9)], sinks=sinks, window=20)


# The interpreter multiplies bfloat16 as if its bits were integers; compiled for a GPU it is what it should be.
@pytest.mark.parametrize("dtype", [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])])
def test_types(dtype):
    check_decode([33, 5], dtype=dtype)
    check_prefill([(0, 33), (20, 5)], dtype=dtype)


def test_decodes_and_prompts_share_a_step():
    check_prefill([(64, 1), (0, 40), (200, 1), (0, 1)], group=1)


# An fp8 cache is multiplied in half precision, whatever the queries are; so the interpreter can do bfloat16 here.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_cache_in_fp8_is_scaled_back(dtype):
    check_fp8(dtype, decode.decode_attention, decode.decode_attention_reference, {"num_splits": 2}, num_queries=1)


def test_prompts_over_a_cache_in_fp8():
    first = torch.tensor([0, 5], dtype=torch.int32, device=DEVICE)
    tiles = torch.from_numpy(prefill.tiles_of(np.array([5]), 3, BLOCK_ROWS)).to(DEVICE)
    launch = partial(prefill.prefill_attention, block_rows=BLOCK_ROWS)
    check_fp8(torch.float16, launch, prefill.prefill_attention_reference, {"first_query": first, "tiles": tiles}, num_queries=5)


def check_fp8(dtype, attention, reference, options, *, num_queries):
    pages = Pages([37], dtype=torch.float32)
    cache = pages.cache.nan_to_num().to(torch.float8_e4m3fn)
    query = queries(num_queries, 6, 64, dtype)
    options = options | {"num_keys": pages.num_keys, "scale": 0.125, "key_scale": 0.5, "value_scale": 2.0}

    assert_equal(attention(query, cache, pages.tables, **options), reference(query, cache, pages.tables, **options))


def test_an_empty_step_is_an_empty_answer():
    check_prefill([])
    check_decode([])


def test_splits_fill_the_device_and_stay_large():
    assert decode.num_splits_for(1, 2, 132, 32_768) == 64
    assert decode.num_splits_for(1, 8, 132, 4096) == 16
    assert decode.num_splits_for(40, 2, 132, 5000) == 4
    assert decode.num_splits_for(256, 8, 132, 8192) == 1


def test_a_short_context_is_not_split():
    assert decode.num_splits_for(1, 1, 132, 511) == 1
    assert decode.num_splits_for(1, 1, 132, 512) == 2


def test_a_very_long_context_is_not_left_to_one_program():
    assert decode.num_splits_for(128, 2, 132, 32_768) == 2
    assert decode.num_splits_for(128, 2, 132, 131_072) == 8


def test_tiles_with_most_keys_come_first():
    """The first request has 8 keys before its 5 queries; two queries of three heads are six rows."""
    tiles = prefill.tiles_of(np.array([5, 3]), 3, 7, num_computed=np.array([8, 0]))

    assert tiles.tolist() == [[0, 4], [0, 2], [0, 0], [1, 2], [1, 0]]


@pytest.mark.parametrize("value_bytes", [1, 2, 4])
def test_each_device_has_a_launch_for_each_head_size(value_bytes):
    for head_dim, capability in product([16, 64, 80, 128, 256], [(8, 0), (8, 6), (9, 0), (12, 0)]):
        assert find_launch("prefill", head_dim, value_bytes, capability).block_rows >= 16
        assert find_launch("decode", head_dim, value_bytes, capability).block_rows == 16


def test_a_launch_that_is_given_is_taken_instead_of_the_table_s(monkeypatch):
    def look_up(*_):
        raise AssertionError

    for module in (decode, prefill):
        monkeypatch.setattr(module, "launch_for", look_up)
    launch, pages, query = Launch(16, 16, 4, 2, None), Pages([5]), queries(1, 6, 64)
    places = pages.cache, pages.tables
    first, tiles = (torch.tensor(values, dtype=torch.int32, device=DEVICE) for values in ([0, 1], [[0, 0]]))

    decoded = decode.decode_attention(query, *places, pages.num_keys, num_splits=1, scale=0.1, launch=launch)
    prefilled = prefill.prefill_attention(query, *places, first, pages.num_keys, tiles, scale=0.1, block_rows=16, launch=launch)

    assert_equal(decoded, decode.decode_attention_reference(query, *places, pages.num_keys, num_splits=1, scale=0.1))
    assert_equal(prefilled, decoded)


@pytest.mark.parametrize("cache", [torch.float8_e4m3fn, torch.bfloat16, torch.float32])
def test_float32_has_its_own_tiles_whatever_the_cache_is_of(cache):
    """Keys and values are widened to the queries' type in shared memory, which has no room for the tiles of narrow ones."""
    for head_dim in (64, 128, 256):
        rows = prefill_block_rows(head_dim, torch.float32, cache, torch.device("cpu"))
        assert rows == find_launch("prefill", head_dim, 4, (9, 0)).block_rows

    query, pages = torch.zeros(1, 1, 128), torch.zeros((1, 16, 2, 1, 128), dtype=cache)
    assert launch_for("decode", query, pages) == find_launch("decode", 128, 4, (9, 0))
    assert launch_for("decode", query.half(), pages) == find_launch("decode", 128, cache.itemsize, (9, 0))


def test_a_device_with_more_memory_has_larger_tiles():
    assert find_launch("prefill", 256, 2, (9, 0)).block_rows > find_launch("prefill", 256, 2, (8, 6)).block_rows


def test_tiles_of_fewer_rows_have_fewer_warps():
    launch = find_launch("prefill", 128, 2, (9, 0))

    assert [launch.num_warps_of(rows) for rows in (128, 64, 16, 8)] == [8, 4, 1, 1]
