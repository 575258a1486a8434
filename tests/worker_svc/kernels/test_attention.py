"""Paged attention: the kernels equal their reference over head sizes, groups, lengths, windows, caps and tables with holes."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from tests.grids import pairs
from tetrad.worker_svc.kernels import decode_attention as decode
from tetrad.worker_svc.kernels import prefill_attention as prefill
from tetrad.worker_svc.kernels.attention_launch import Launch, find_launch, launch_for, prefill_block_rows
from tetrad.worker_svc.kernels.decode_parts import PartSizes, list_parts

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


def check_decode(lengths, *, group=3, num_wanted=4, dtype=torch.float32, head_dim=64, block_size=16, window=0, **options):
    """num_wanted: number of parts that fill the device."""
    pages = Pages(lengths, head_dim=head_dim, block_size=block_size, dtype=dtype)
    parts = parts_of(pages, group=group, num_wanted=num_wanted, window=window)
    arguments = (queries(len(lengths), 2 * group, head_dim, dtype), pages.cache, pages.tables, parts)
    options = {"scale": head_dim**-0.5} | options

    found = decode.decode_attention(*arguments, **options)

    assert_equal(found, decode.decode_attention_reference(*arguments, **options))
    assert not parts.tickets.any(), "the next layer counts from 0"


def parts_of(pages, *, group=3, num_wanted=4, window=0):
    return list_parts(pages.num_keys, PartSizes(pages.cache.shape[3], group, num_wanted, block_keys=64), window=window)


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


HEADS = pairs([64, 80, 96, 128, 256], [1, 3, 8])


@pytest.mark.parametrize(("head_dim", "group"), HEADS)
def test_decode_over_head_sizes_and_groups(head_dim, group):
    check_decode([1, 70, 929], head_dim=head_dim, group=group)


@pytest.mark.parametrize(("head_dim", "group"), HEADS)
def test_prefill_over_head_sizes_and_groups(head_dim, group):
    check_prefill([(0, 1), (40, 9), (3, 20)], head_dim=head_dim, group=group)


@pytest.mark.parametrize(
    ("lengths", "num_wanted"), pairs([[1], [0, 5, 0], [64, 65, 63], [128, 127, 129], [0, 640], [300]], [1, 2, 40])
)
def test_decode_over_lengths_and_numbers_of_parts(lengths, num_wanted):
    check_decode(lengths, num_wanted=num_wanted, group=1)


@pytest.mark.parametrize("window", [0, 1000])
def test_a_long_context_among_short_ones_is_divided(window):
    check_decode([40, 3000, 0, 7, 64], num_wanted=33, window=window)


def test_the_order_in_which_parts_finish_does_not_change_a_bit(monkeypatch):
    """The interpreter runs programs in order, so here the last part finishes first in the second run."""
    pages = Pages([1000, 40, 600])
    parts, query, builder = parts_of(pages, num_wanted=12), queries(3, 6, 64), interpreter.interpreter_builder

    forwards = decode.decode_attention(query, pages.cache, pages.tables, parts, scale=0.125)
    set_place, last = builder.set_grid_idx, len(parts.table) - 1
    monkeypatch.setattr(builder, "set_grid_idx", lambda head, part, _: set_place(head, last - part, 0))
    backwards = decode.decode_attention(query, pages.cache, pages.tables, parts, scale=0.125)

    assert torch.equal(forwards, backwards)


def test_a_request_may_have_more_parts_than_are_merged_at_a_time():
    check_decode([40 * 64], num_wanted=64, group=1)


def test_a_group_may_have_more_heads_than_are_merged_at_a_time():
    check_decode([300], group=40)


@pytest.mark.parametrize("window", [0, 7, 65])
@pytest.mark.parametrize("group", [1, 3])
def test_tokens_of_an_image_attend_to_its_later_tokens(window, group):
    """An image in each of three chunks: over several tiles of queries, behind text, and up to the last token."""
    ends = [*range(1, 4), *[93] * 90, *range(94, 98), *[72] * 8, 73, *range(1, 4), *[9] * 6]
    check_prefill(
        [(0, 97), (64, 9), (0, 9)], window=window, group=group, ends=torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    )


@pytest.mark.parametrize(("window", "block_size"), pairs([1, 7, 64, 65, 1000], [4, 16]))
def test_a_window_hides_older_keys(window, block_size):
    check_decode([5, 1050, 64], window=window, block_size=block_size, group=1)
    check_prefill([(0, 30), (100, 11), (63, 2)], window=window, block_size=block_size)


@pytest.mark.parametrize("window", [1, 7, 65])
def test_what_a_window_has_passed_is_never_read(window):
    """Such blocks are other requests' by then: here they hold NaN."""
    pages = Pages([150, 111], block_size=4)
    parts = parts_of(pages, window=window)
    first = torch.tensor([0, 1, 12], dtype=torch.int32, device=DEVICE)
    tiles = torch.from_numpy(prefill.tiles_of(np.array([1, 11]), 3, BLOCK_ROWS)).to(DEVICE)
    query, options = queries(12, 6, 64), {"scale": 0.125, "window": window}
    expected = [
        decode.decode_attention_reference(query[:2], pages.cache, pages.tables, parts, scale=0.125),
        prefill.prefill_attention_reference(query, pages.cache, pages.tables, first, pages.num_keys, tiles, **options),
    ]
    for row, position in enumerate((149, 100)):
        pages.cache[pages.tables[row, : max(0, position - window + 1) // 4].long()] = torch.nan

    found = prefill.prefill_attention(
        query, pages.cache, pages.tables, first, pages.num_keys, tiles, block_rows=BLOCK_ROWS, **options
    )

    assert_equal(decode.decode_attention(query[:2], pages.cache, pages.tables, parts, scale=0.125), expected[0])
    assert_equal(found, expected[1])


def test_a_cap_bounds_scores():
    check_decode([5, 90, 700], softcap=0.5)
    check_prefill([(0, 9), (70, 9)], softcap=0.5)


def test_a_sink_takes_weight():
    sinks = torch.tensor([-3.0, 0.0, 1.0, 5.0, 30.0, -30.0], device=DEVICE)
    check_decode([0, 5, 90, 900], sinks=sinks, softcap=4.0)
    check_prefill([(0, 9), (70, 9)], sinks=sinks, window=20)


@pytest.mark.parametrize("options", [{}, {"softcap": 4.0}, {"window": 100}], ids=["plain", "cap", "window"])
def test_linear_biases_of_heads(options):
    """The parts of a request agree on the position that biases are relative to; sinks have no bias."""
    slopes = torch.tensor([2.0, 0.84, 0.25, 2.0**-4, 2.0**-6, 2.0**-8], device=DEVICE)
    sinks = torch.linspace(-1, 1, 6, device=DEVICE)
    check_decode([0, 5, 90, 900], slopes=slopes, sinks=sinks, **options)
    check_decode([40 * 64], num_wanted=64, slopes=slopes[3:].repeat(2), **options)
    check_prefill([(0, 9), (70, 40)], slopes=slopes, sinks=sinks, **options)


# The interpreter multiplies bfloat16 as if its bits were integers; compiled for a GPU it is what it should be.
@pytest.mark.parametrize("dtype", [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])])
def test_types(dtype):
    check_decode([33, 5, 600], dtype=dtype)
    check_prefill([(0, 33), (20, 5)], dtype=dtype)


def test_decodes_and_prompts_share_a_step():
    check_prefill([(64, 1), (0, 40), (200, 1), (0, 1)], group=1)


# An fp8 cache is multiplied in half precision, whatever the queries are; so the interpreter can do bfloat16 here.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_cache_in_fp8_is_scaled_back(dtype):
    pages = Pages([300])
    arguments = {"parts": parts_of(pages)}
    check_fp8(pages, dtype, decode.decode_attention, decode.decode_attention_reference, arguments, num_queries=1)


def test_prompts_over_a_cache_in_fp8():
    pages, first = Pages([37]), torch.tensor([0, 5], dtype=torch.int32, device=DEVICE)
    tiles = torch.from_numpy(prefill.tiles_of(np.array([5]), 3, BLOCK_ROWS)).to(DEVICE)
    launch = partial(prefill.prefill_attention, block_rows=BLOCK_ROWS)
    arguments = {"first_query": first, "tiles": tiles, "num_keys": pages.num_keys}
    check_fp8(pages, torch.float16, launch, prefill.prefill_attention_reference, arguments, num_queries=5)


def check_fp8(pages, dtype, attention, reference, arguments, *, num_queries):
    cache = pages.cache.nan_to_num().to(torch.float8_e4m3fn)
    query = queries(num_queries, 6, 64, dtype)
    options = arguments | {"scale": 0.125, "key_scale": 0.5, "value_scale": 2.0}

    assert_equal(attention(query, cache, pages.tables, **options), reference(query, cache, pages.tables, **options))


def test_an_empty_step_is_an_empty_answer():
    check_prefill([])
    check_decode([])


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
    places, parts = (pages.cache, pages.tables), parts_of(pages)
    first, tiles = (torch.tensor(values, dtype=torch.int32, device=DEVICE) for values in ([0, 1], [[0, 0]]))

    decoded = decode.decode_attention(query, *places, parts, scale=0.1, launch=launch)
    prefilled = prefill.prefill_attention(query, *places, first, pages.num_keys, tiles, scale=0.1, block_rows=16, launch=launch)

    assert_equal(decoded, decode.decode_attention_reference(query, *places, parts, scale=0.1))
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


def test_tiles_of_padding_leave_and_tokens_without_a_tile_are_not_written():
    """As in a graph: the first request has one query, which another kernel has computed; two tokens are padding."""
    pages = Pages([9, 20])
    query, first = queries(13, 6, 64), torch.tensor([0, 1, 11], dtype=torch.int32, device=DEVICE)
    found = prefill.tiles_of(np.array([10]), 3, BLOCK_ROWS, np.array([10]))
    found[:, 0] = 1
    tiles = torch.from_numpy(np.concatenate([found, np.full((4, 2), -1, np.int32)])).to(DEVICE)
    arguments = query, pages.cache, pages.tables, first, pages.num_keys, tiles
    results = [torch.full((13, 6, 64), 7.0, device=DEVICE) for _ in range(2)]

    prefill.prefill_attention(*arguments, scale=0.1, block_rows=BLOCK_ROWS, out=results[0])
    prefill.prefill_attention_reference(*arguments, scale=0.1, out=results[1])

    assert_equal(*results)
    assert (results[0][0] == 7).all() and (results[0][11:] == 7).all()


def test_tiles_of_fewer_rows_have_fewer_warps():
    launch = find_launch("prefill", 128, 2, (9, 0))

    assert [launch.num_warps_of(rows) for rows in (128, 64, 16, 8)] == [8, 4, 1, 1]
