"""Attention of the native kernels over scattered pages: equal to torch's in float64, for any content of unwritten slots."""

from itertools import product

import numpy as np
import pytest
import torch

from tests.grids import grid
from tests.worker_svc.native.native_programs import NAN_OF_HALVES, NO_HEADS, RUNNABLE, Chunk, PagedAttention, from_int8, team_of
from tetrad.worker_svc.native.operands import LayerPages, NormWeights, QueryKeyNorms
from tetrad.worker_svc.native.program import Pages, Tokens
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.structures import HeadNorms, Heads, KvType

DECODES = [Chunk(computed, 1) for computed in (0, 1, 15, 63, 64, 65, 200)]
WINDOWED = (4, 5, 32)
"""Sizes of blocks of 8 bits that `make test` tries with a window, and the others without one."""
SLOPES = torch.tensor([2.0, 0.84, 2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
MIXED = [Chunk(130, 1), Chunk(5, 1), Chunk(0, 1), Chunk(64, 37), Chunk(0, 80), Chunk(3, 2)]


@pytest.fixture(scope="module", params=RUNNABLE)
def team(request):
    return team_of(request.param)


def assert_attention(case: PagedAttention) -> None:
    for found, expected in zip(case.run(), case.expected(), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-6)


@pytest.mark.parametrize("block_size", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("chunks", [DECODES, MIXED, [*DECODES, *MIXED]], ids=["decodes", "mixed", "both"])
def test_block_sizes(team, block_size, chunks):
    assert_attention(PagedAttention(team, Heads(6, 2, 16, block_size, 0), chunks))


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_sizes_and_groups_of_heads(team, head_dim, group):
    assert_attention(PagedAttention(team, Heads(2 * group, 2, head_dim, 16, 0), MIXED))


@pytest.mark.parametrize("block_size", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("head_dim", [16, 80, 256])
def test_keys_and_values_in_half_precision(team, block_size, head_dim):
    assert_attention(PagedAttention(team, Heads(6, 2, head_dim, block_size, 0, KvType.FLOAT16), MIXED))


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize(
    ("block_size", "window"),
    grid(product([1, 4, 5, 8, 16, 32, 48], [0, 20]), lambda size, window: (size in WINDOWED) == bool(window)),
)
def test_keys_and_values_in_8_bits(team, block_size, head_dim, window):
    """Queries and weights have 16 bits: what is expected takes them as they are."""
    case = PagedAttention(team, Heads(6, 2, head_dim, block_size, window, KvType.INT8), [*DECODES, *MIXED])

    for found, expected in zip(case.run(), case.expected(), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize("window", [1, 7, 16, 64, 65, 1000])
@pytest.mark.parametrize("block_size", [4, 16])
def test_sliding_windows(team, window, block_size):
    chunks = [Chunk(300, 1), Chunk(0, 1), Chunk(150, 40), Chunk(0, 90)]
    assert_attention(PagedAttention(team, Heads(4, 2, 32, block_size, window), chunks))


@pytest.mark.parametrize("kv_type", [KvType.FLOAT32, KvType.FLOAT16, KvType.INT8], ids=lambda kv_type: kv_type.name)
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("block_size", [4, 5, 16])
def test_tokens_of_an_image_attend_to_the_whole_image(team, kv_type, window, block_size):
    """A window limits only what they see before them."""
    images = [
        Chunk(130, 1),
        Chunk(64, 37, (range(70, 90), range(95, 101))),
        Chunk(0, 80, (range(80),)),
        Chunk(10, 60, (range(4, 50), range(50, 51))),
        Chunk(0, 33),
    ]
    case = PagedAttention(team, Heads(6, 2, 32, block_size, window, kv_type), images)

    for found, expected in zip(case.run(), case.expected(), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4 if kv_type == KvType.INT8 else 3e-6)


@pytest.mark.parametrize("kv_type", [KvType.FLOAT32, KvType.INT8])
@pytest.mark.parametrize("sink", [-100.0, 0.0, 3.0, 200.0])
def test_sinks_take_weight_from_the_keys(team, kv_type, sink):
    """Also where the sink's score is far above or below all others."""
    sinks = torch.linspace(sink - 1, sink + 1, 6)
    case = PagedAttention(team, Heads(6, 2, 32, 16, 20, kv_type), [*DECODES, *MIXED], sinks=sinks)

    for found, expected in zip(case.run(), case.expected(), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-6 if kv_type == KvType.FLOAT32 else 2e-4)


@pytest.mark.parametrize(("kv_type", "tolerance"), [(KvType.FLOAT32, 3e-6), (KvType.FLOAT16, 3e-6), (KvType.INT8, 2e-4)])
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("window", [0, 20])
def test_linear_biases_of_heads(team, kv_type, tolerance, block_size, window):
    """From slopes that leave a query little but its own key to those that hardly count."""
    heads = Heads(6, 2, 32, block_size, window, kv_type)
    case = PagedAttention(team, heads, [*DECODES, *MIXED], slopes=SLOPES)

    for found, expected in zip(case.run(), case.expected(), strict=True):
        np.testing.assert_allclose(found, expected, atol=tolerance)


def test_linear_biases_of_long_contexts_keep_their_digits(team):
    """Products of slopes with positions of 4,000 and more would have lost three digits, and more with every key."""
    case = PagedAttention(team, Heads(2, 1, 16, 16, 0), [Chunk(9000, 1)], slopes=torch.tensor([0.84, 2.0**-8]))
    [expected] = case.expected()

    [found] = case.run()

    assert (found - expected).norm() < 6e-7 * expected.norm()


def test_linear_biases_beside_sinks_and_capped_scores(team):
    case = PagedAttention(team, Heads(6, 2, 32, 16, 0, softcap=3.0), MIXED, sinks=torch.linspace(-1, 1, 6), slopes=SLOPES)

    assert_attention(case)


def test_values_of_many_keys_keep_their_digits(team):
    """One sum over all keys would be off by 1e-6."""
    case = PagedAttention(team, Heads(2, 1, 16, 16, 0), [Chunk(4000, 1)])
    [expected] = case.expected()

    [found] = case.run()

    assert (found - expected).norm() < 6e-7 * expected.norm()


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize(
    ("kv_type", "broken"),
    [(KvType.FLOAT32, torch.nan), (KvType.FLOAT32, torch.inf), (KvType.INT8, NAN_OF_HALVES)],
)
def test_what_has_left_the_window_may_hold_anything(team, kv_type, broken, block_size):
    """Blocks behind the window are given back and written by others while the request goes on."""
    case = PagedAttention(team, Heads(4, 2, 32, block_size, 20, kv_type), [Chunk(299, 1)])
    case.run()
    case.cache[case.tables[0, : (299 - 20) // block_size]] = broken
    case.chunks[0].computed, expected = 299, case.expected()

    found = case._step(case._attending, case.chunks)

    np.testing.assert_allclose(found, expected[0], atol=3e-6 if kv_type == KvType.FLOAT32 else 2e-4)


@pytest.mark.parametrize("kv_type", KvType)
@pytest.mark.parametrize("slopes", [None, SLOPES], ids=["unbiased", "biased"])
def test_a_sequences_bits_do_not_depend_on_the_batch_or_the_cut(team, kv_type, slopes):
    heads = Heads(6, 2, 16, 16, 0, kv_type)
    whole = PagedAttention(team, heads, [Chunk(0, 200)], slopes=slopes)
    [expected] = whole.run()
    for computed in (1, 63, 64, 150, 199):
        batch = [Chunk(computed, 200 - computed), *MIXED]
        case = PagedAttention(team, heads, batch, slopes=slopes)
        case.rows[0] = whole.rows[0]

        found = case.run()

        np.testing.assert_array_equal(found[0], expected[computed:])


@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("part", [16, 32], ids=["keys", "values"])
def test_small_and_large_numbers_in_8_bits(team, part, scale):
    """Scales have half precision: what is below its smallest number is 0, and what lies near it has few digits."""
    case = PagedAttention(team, Heads(1, 1, 16, 16, 0, KvType.INT8), [Chunk(99, 2), Chunk(0, 30)])
    for rows in case.rows:
        rows[:, part : part + 16] *= scale
        rows[:, 16:] = from_int8(rows[:, 16:], 16)

    for found, expected in zip(case.run(), case.expected(), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4 * max(1.0, scale))


@pytest.mark.parametrize("sharpness", [0.0, 1e-20, 30.0, 1e3])
def test_flat_and_sharp_scores(team, sharpness):
    """All weights alike; one weight alone, and exponents far beyond those that floats have."""
    case = PagedAttention(team, Heads(2, 2, 16, 16, 0), [Chunk(99, 2), Chunk(0, 30)])
    for rows in case.rows:
        rows[:, :32] *= sharpness

    for found, expected in zip(case.run(), case.expected(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5 * max(1.0, sharpness))


def test_the_weights_of_scores_are_exponentials(team):
    """Two keys: the first scores 0 and has value 1, the other value 0, so the output is 1 / (1 + e^score)."""
    scores = torch.cat([torch.linspace(-100, 100, 4001), torch.tensor([-87.5, -87.0, -86.9, 0.0, 87.0, 88.0, 88.5])])
    case = PagedAttention(team, Heads(1, 1, 16, 16, 0), [Chunk(1, 1) for _ in scores])
    for rows, score in zip(case.rows, scores.tolist(), strict=True):
        rows[:] = 0
        rows[0, 32] = 1  # value of the first key
        rows[1, 0], rows[1, 16] = 4, score  # query and second key, scaled by 1 / sqrt(16)

    found = torch.cat(case.run())[:, 0]

    # 1 / (1 + e^score) has few digits in common with 1 - sigmoid(score): computed as a sigmoid of the opposite.
    expected = torch.sigmoid(-scores.double())
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("window", [0, 7])
def test_a_broken_key_that_is_alone_in_its_stride_is_not_passed_over(team, window):
    """The first query sees nothing else; with a window, one further on sees it at the end of a stride of hidden keys."""
    case = PagedAttention(team, Heads(1, 1, 16, 16, window), [Chunk(0, 80)])
    for key in (0, 31, 63):
        case.rows[0][key, 16] = torch.nan

    found = torch.isnan(case.run()[0]).all(dim=1)

    seen = {query for key in (0, 31, 63) for query in range(key, key + window if window else 80)}
    assert found.nonzero().flatten().tolist() == sorted(query for query in seen if query < 80)


@pytest.mark.parametrize("kv_type", KvType)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("column", [0, 16, 32], ids=["query", "key", "value"])
def test_what_is_not_finite_reaches_the_result_of_its_request_alone(team, column, broken, kv_type):
    heads, chunks = Heads(1, 1, 16, 16, 0, kv_type), [Chunk(70, 1), Chunk(70, 1)]
    case, whole = PagedAttention(team, heads, chunks), PagedAttention(team, heads, chunks)
    case.rows[0][70, 0] = 1.0  # with a negative query an infinite key is one that is not looked at
    case.rows[0][70, column] = broken

    found, expected = case.run(), whole.run()

    assert not torch.isfinite(found[0]).all()
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (80, 80), (80, 34)])
def test_queries_and_keys_are_normed_rotated_and_written(team, head_dim, rotary_dim):
    heads, size = Heads(4, 2, head_dim, 16, 0, rotary_dim=rotary_dim), 16
    weights = [torch.rand(head_dim) + 0.5 for _ in range(2)]
    builder = ProgramBuilder(team)
    buffer = builder.buffer(8 * head_dim)
    builder.rotate(LayerPages(0), buffer, QueryKeyNorms(HeadNorms.EACH_HEAD, *weights, eps=1e-5))
    rows, of_all_positions = torch.randn(5, 8 * head_dim), torch.rand(10, rotary_dim // 2) * 6
    turns, positions = torch.cat([of_all_positions.cos(), of_all_positions.sin()], 1), np.array([4, 0, 2, 9, 1])
    angles = of_all_positions[positions]
    cache, given = torch.full((4, 2 * 2 * size * head_dim), torch.nan), rows.clone()
    slots = np.array([3, 15, 16, 40, 63])
    one = np.zeros(1, np.int64)
    pages = Pages(slots[None], np.zeros((1, 1, 1), np.int32), one, one, one, size, 10)

    builder.build("rotate", heads).run(5, Tokens(np.zeros(5, np.int64), positions, [turns], cache), pages, {buffer: given})

    expected = rows.double().view(5, 8, head_dim)
    for first, last, weight in ((0, 4, weights[0]), (4, 6, weights[1])):
        part = torch.nn.functional.rms_norm(expected[:, first:last], (head_dim,), weight.double(), 1e-5)
        low, high = part[..., :rotary_dim].chunk(2, dim=2)
        cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]
        expected[:, first:last] = torch.cat([low * cos - high * sin, high * cos + low * sin, part[..., rotary_dim:]], dim=2)
    np.testing.assert_allclose(given.view(5, 8, head_dim), expected, atol=2e-6)
    written = cache.isfinite().sum()
    keys, values = cache.view(4, 2, 2, -1).unbind(1)  # [pages, KV heads, ...]
    for token, slot in enumerate(slots.tolist()):
        key = keys[slot // size].view(2, head_dim, size)[..., slot % size]
        value = values[slot // size].view(2, size, head_dim)[:, slot % size]
        np.testing.assert_array_equal(key, given.view(5, 8, head_dim)[token, 4:6])
        np.testing.assert_array_equal(value, given.view(5, 8, head_dim)[token, 6:])
    assert written == 5 * 2 * 2 * head_dim


def test_queries_keys_and_values_are_bounded(team):
    """What is not a number stays so."""
    heads, size, cache, one = Heads(2, 1, 16, 16, 0), 16, torch.zeros(1, 2 * 16 * 16), np.zeros(1, np.int64)
    builder = ProgramBuilder(team)
    buffer = builder.buffer(4 * size)
    builder.rotate(LayerPages(0), buffer, turns=None, bound=0.5)
    rows, positions = torch.randn(3, 4 * size), np.arange(3)
    rows[0, 0], rows[1, 5], rows[2, 9] = torch.nan, torch.inf, -torch.inf
    given = rows.clone()
    tokens = Tokens(np.zeros(3, np.int64), positions, [], cache)
    pages = Pages(positions[None], np.zeros((1, 1, 1), np.int32), one, one, one, size, 3)

    builder.build("bound", heads).run(3, tokens, pages, {buffer: given})

    np.testing.assert_array_equal(given, rows.clamp(-0.5, 0.5))
    keys, values = cache.view(2, size, size)
    np.testing.assert_array_equal(keys[:, :3].T, rows[:, 2 * size : 3 * size].clamp(-0.5, 0.5))
    np.testing.assert_array_equal(values[:3], rows[:, 3 * size :].clamp(-0.5, 0.5))


@pytest.mark.parametrize(("kv_type", "tolerance"), [(KvType.FLOAT32, 3e-6), (KvType.INT8, 5e-4)])
def test_scores_are_scaled_and_capped(team, kv_type, tolerance):
    case = PagedAttention(team, Heads(6, 2, 32, 16, 0, kv_type, scale=0.5, softcap=3.0), MIXED)

    for found, expected in zip(case.run(), case.expected(), strict=True):
        np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.parametrize("table", [0, 1, None])
def test_a_layer_turns_by_its_own_table_or_not_at_all(team, table):
    heads, size, cache = Heads(2, 1, 16, 16, 0, rotary_dim=16), 16, torch.zeros(1, 2 * 16 * 16)
    weights = [torch.rand(2 * size) + 0.5, torch.rand(size) + 0.5]
    builder = ProgramBuilder(team)
    buffer = builder.buffer(4 * size)
    builder.rotate(LayerPages(0), buffer, QueryKeyNorms(HeadNorms.ALL_HEADS, *weights, eps=1e-5), turns=table)
    angles, rows, one = torch.rand(2, 3, size // 2) * 6, torch.randn(3, 4 * size), np.zeros(1, np.int64)
    given, positions = rows.clone(), np.arange(3)
    tokens = Tokens(np.zeros(3, np.int64), positions, list(torch.cat([angles.cos(), angles.sin()], 2)), cache)
    pages = Pages(positions[None], np.zeros((1, 1, 1), np.int32), one, one, one, size, 3)

    builder.build("rotate", heads).run(3, tokens, pages, {buffer: given})

    normed = [
        torch.nn.functional.rms_norm(part, (len(weight),), weight, 1e-5)
        for part, weight in zip(rows[:, : 3 * size].split([2 * size, size], 1), weights, strict=True)
    ]
    expected = torch.cat(normed, 1).view(3, 3, size)
    if table is not None:
        (low, high), angle = expected.chunk(2, dim=2), angles[table][:, None]
        expected = torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], 2)
    np.testing.assert_allclose(given[:, : 3 * size].view(3, 3, size), expected, atol=2e-6)


@pytest.mark.parametrize("size", [1, 8, 15, 33, 96])
def test_layer_norms_and_norms_that_are_added(team, size):
    builder = ProgramBuilder(team)
    source, target = builder.buffer(size), builder.buffer(size)
    weight, bias, x = torch.rand(size) + 0.5, torch.randn(size), torch.randn(7, size) + 3
    given, before = x.clone(), torch.randn(7, size)
    out = before.clone()
    builder.norm(NormWeights(weight, 1e-5, bias, is_centered=True), source, target, added=0.25)

    builder.build("norm", NO_HEADS).run(7, given={source: given, target: out})

    expected = torch.nn.functional.layer_norm(x.double(), (size,), weight.double(), bias.double(), 1e-5)
    np.testing.assert_allclose(out, before + 0.25 * expected, atol=3e-6)


@pytest.mark.parametrize("size", [1, 8, 15, 33, 96])
def test_norms_of_sizes_that_fill_no_vector(team, size):
    builder = ProgramBuilder(team)
    source, target = builder.buffer(size), builder.buffer(size)
    weight, x, out = torch.rand(size) + 0.5, torch.randn(7, size), torch.full((7, size), torch.nan)
    builder.norm(NormWeights(weight, 1e-5), source, target)

    builder.build("norm", NO_HEADS).run(7, given={source: x, target: out})

    expected = torch.nn.functional.rms_norm(x.double(), (size,), weight.double(), 1e-5)
    np.testing.assert_allclose(out, expected, rtol=2e-6)


@pytest.mark.parametrize("num_threads", [2, 4])
def test_a_team_gives_the_same_bits(num_threads):
    heads = Heads(6, 2, 16, 16, 0)
    expected = PagedAttention(team_of(RUNNABLE[0]), heads, MIXED).run()
    for _ in range(5):
        found = PagedAttention(team_of(RUNNABLE[0], num_threads), heads, MIXED).run()

        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
