"""Tile shapes: measured sizes use the table, other sizes a rule, and the table is read as it was written."""

from dataclasses import replace

import pytest

from tetrad.worker_svc.kernels.tile_shapes import (
    TileShape,
    TileShapes,
    candidates,
    key_of,
    load_tuned,
    save_tuned,
    shape_by_rule,
    tuned_path,
    whole_shape_by_rule,
)

MEASURED = TileShape(rows=16, outputs=128, columns=256, splits=2, warps=8, stages=3)
H200 = 132


def test_a_measured_shape_holds_for_rows_up_to_the_next_power_of_two():
    shapes = TileShapes(H200, {key_of("int8", 128, 1536, 8960): MEASURED})

    assert all(shapes.of("int8", rows, 1536, 8960) == MEASURED for rows in (65, 100, 128))
    assert all(shapes.of("int8", rows, 1536, 8960) != MEASURED for rows in (64, 129))
    assert shapes.of("int4/128", 128, 1536, 8960) != MEASURED


def test_products_of_one_kernel_with_different_rules_have_different_shapes():
    """The same product may be split in one place, and in another one not."""
    shapes = TileShapes(H200)

    split = shapes.of("normed_product", 1, 1536, 8960)
    whole = shapes.of("normed_product", 1, 1536, 8960, whole_shape_by_rule)

    assert (split.splits > 1, whole.splits) == (True, 1)
    assert shapes.of("normed_product", 1, 1536, 8960) == split


@pytest.mark.parametrize(("num_rows", "tile_rows"), [(1, 16), (16, 16), (17, 32), (64, 64), (65, 128), (8192, 128)])
def test_tiles_have_the_rows_that_there_are(num_rows, tile_rows):
    assert shape_by_rule(num_rows, 2048, 1536, H200).rows == tile_rows


def test_k_is_split_only_where_tiles_alone_do_not_fill_the_device():
    down, gate_up, prompt = ((1, 1536, 8960), (1, 17_920, 1536), (8192, 1536, 8960))

    splits = [shape_by_rule(*size, H200).splits for size in (down, gate_up, prompt)]

    assert splits == [11, 1, 1]


@pytest.mark.parametrize("num_columns", [32, 200, 1536])
def test_every_part_of_a_split_has_some_of_k(num_columns):
    shape = shape_by_rule(1, 64, num_columns, H200)

    assert shape.splits == 1 or shape.splits * shape.columns <= num_columns


@pytest.mark.parametrize("num_rows", [1, 32, 100, 4096])
def test_there_is_something_to_measure_for_any_number_of_rows(num_rows):
    found = list(candidates(num_rows, 2048, 1536))

    assert 10 < len(found) < 400
    assert len(set(found)) == len(found)


def test_tiles_of_float32_are_narrow_as_shared_memory_is_no_larger_for_them():
    shape = shape_by_rule(4096, 2048, 1536, H200)

    assert shape.for_values_of(2) == shape.for_values_of(1) == shape
    assert shape.for_values_of(4) == replace(shape, columns=64, stages=2)


def test_a_table_is_read_as_it_was_written(tmp_path):
    tuned = {"int8 1 x 64 x 64": MEASURED, "fp8xfp8 128 x 64 x 64": None}

    save_tuned(tmp_path / "table.json", tuned)

    assert load_tuned(tmp_path / "table.json") == tuned
    assert load_tuned(tmp_path / "another.json") == {}


def test_a_device_finds_its_table_by_its_name():
    assert tuned_path("NVIDIA A100-SXM4-80GB").name == "tile_shapes.nvidia_a100_sxm4_80gb.json"


def test_the_tables_that_are_shipped_can_be_read():
    for path in tuned_path("any").parent.glob("tile_shapes.*.json"):
        assert load_tuned(path)


def test_a_rule_gives_the_shapes_that_were_not_measured():
    measured = TileShape(16, 32, 64, 1, 4, 3)
    shapes = TileShapes(132, {key_of("fp8xfp8", 128, 2048, 1536): measured})

    def rule(num_rows, *_):
        return None if num_rows > 64 else shape_by_rule(num_rows, 2048, 1536, 132)

    assert shapes.of("fp8xfp8", 128, 2048, 1536, rule) == measured
    assert shapes.of("fp8xfp8", 65, 1536, 1536, rule) is None
    assert shapes.of("fp8xfp8", 64, 1536, 1536, rule) is not None


def test_large_tiles_have_few_parts_since_one_program_sums_them():
    assert shape_by_rule(128, 2048, 8960, 132).splits == 4
    assert shape_by_rule(16, 2048, 8960, 132).splits > 4
