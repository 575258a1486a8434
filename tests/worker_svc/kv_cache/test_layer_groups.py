"""Layer groups: which layers share block tables, and which pages of a block they have."""

import pytest
import torch

from tetrad.worker_svc.kv_cache.cache import KvCache, KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import LayerGroup, group_layers, group_of_layers

FULL, WINDOW = None, 24


@pytest.mark.parametrize(
    ("windows", "sizes"),
    [
        ([FULL] * 4, [(FULL, 4)]),
        ([WINDOW] * 4, [(WINDOW, 4)]),
        ([FULL] * 10 + [WINDOW] * 20, [(FULL, 10), (WINDOW, 10), (WINDOW, 10)]),
        ([WINDOW, WINDOW, WINDOW, WINDOW, WINDOW, FULL], [(FULL, 1), *[(WINDOW, 1)] * 5]),
        ([WINDOW] * 12 + [FULL] * 13, [(FULL, 13), (WINDOW, 12)]),
        ([FULL] * 2 + [WINDOW] * 5, [(FULL, 2), (WINDOW, 2), (WINDOW, 2), (WINDOW, 1)]),
        ([FULL, 8, WINDOW], [(FULL, 1), (8, 1), (WINDOW, 1)]),
    ],
    ids=str,
)
def test_groups_are_as_large_as_the_smallest_kind_unless_the_kinds_are_about_equal(windows, sizes):
    groups = group_layers(windows)

    assert [(group.sliding_window, len(group.layers)) for group in groups] == sizes
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    assert [groups[number].sliding_window for number in group_of_layers(groups)] == windows


@pytest.mark.parametrize("is_by_block", [False, True])
def test_layers_of_different_groups_share_memory_and_those_of_one_do_not(is_by_block):
    """Four layers in two groups: a block has two pages, and layers 0 and 1 are the first of their groups."""
    spec = KvCacheSpec(group_layers([WINDOW, FULL, WINDOW, FULL]), 2, 4, torch.float32, is_by_block)
    cache = KvCache(spec, num_blocks=5, block_size=2)

    cache.layers[0][3] = 7.0

    assert (cache.layers[1][3] == 7).all()
    assert (cache.layers[2] == 0).all()
    assert (cache.layers[3] == 0).all()
    assert cache.size_bytes == 5 * 2 * (2 * 2 * 2 * 4) * 4


def test_the_engine_core_learns_of_groups_with_blocks_of_one_size():
    spec = KvCacheSpec(group_layers([WINDOW, FULL, WINDOW, WINDOW]), 2, 4, torch.float16)

    groups = spec.kv_groups(16)

    assert spec.groups == (LayerGroup((1,)), LayerGroup((0,), WINDOW), LayerGroup((2,), WINDOW), LayerGroup((3,), WINDOW))
    assert [(group.layers, group.sliding_window, group.dtype) for group in groups] == [
        ((1,), None, "float16"), ((0,), WINDOW, "float16"), ((2,), WINDOW, "float16"), ((3,), WINDOW, "float16")
    ]  # fmt: skip
    assert {group.block_size_bytes for group in groups} == {spec.block_size_bytes(16)}
