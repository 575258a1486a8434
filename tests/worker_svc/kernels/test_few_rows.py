"""Products with few rows equal their references, with norm, rotation, gates and residual stream."""

import pytest
import torch

from tetrad.worker_svc.kernels.added_product import added_product, added_product_reference
from tetrad.worker_svc.kernels.normed_products import (
    normed_gated,
    normed_gated_reference,
    normed_product,
    normed_product_reference,
    normed_qkv,
    normed_qkv_reference,
)
from tetrad.worker_svc.kernels.scaled_stream import scale_stream, scale_stream_reference
from tetrad.worker_svc.kernels.split_k import make_tickets
from tetrad.worker_svc.kernels.tile_shapes import TileShape

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
EPS = 1e-5
TYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]
"""The interpreter computes bfloat16 in other roundings than a device."""


def normal(*shape, dtype, seed=1, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(DEVICE, dtype)


def shape_of(outputs, columns, splits=1, rows=16):
    return TileShape(rows, outputs, columns, splits, warps=4, stages=3)


def assert_equal(found, expected):
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("num_rows", "num_columns", "rotary_dim", "has_bias"),
    [(1, 64, 16, False), (5, 80, 12, True), (19, 64, 12, True), (16, 80, 16, False)],
)
def test_queries_keys_and_values(num_rows, num_columns, rotary_dim, has_bias, dtype):
    """A tile of outputs has queries, keys and values; one token is padding."""
    num_heads, num_kv_heads, head_dim = 3, 1, 16
    num_outputs = (num_heads + 2 * num_kv_heads) * head_dim
    residual = normal(num_rows, num_columns, dtype=dtype)
    weight = normal(num_outputs, num_columns, dtype=dtype, seed=2, scale=num_columns**-0.5)
    bias = normal(num_outputs, dtype=dtype, seed=3) if has_bias else None
    angles = normal(num_rows, rotary_dim // 2, dtype=torch.float32, seed=4)
    slots = torch.randperm(32, generator=torch.Generator().manual_seed(5))[:num_rows].to(DEVICE)
    slots[num_rows // 2] = -1
    caches = [normal(8, 4, 2, num_kv_heads, head_dim, dtype=dtype, seed=6) for _ in range(2)]

    def queries(product, cache):
        scaled = scale_stream_reference(residual, normal(num_columns, dtype=dtype, seed=7))
        cos_sin = torch.cat([angles.cos(), angles.sin()], 1)
        return product(scaled, weight, bias, cos_sin, slots, cache, num_heads, eps=EPS, shape=shape_of(64, 32))

    assert_equal(queries(normed_qkv, caches[0]), queries(normed_qkv_reference, caches[1]))
    assert_equal(*caches)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num_rows", "num_outputs", "num_columns", "has_bias"), [(1, 40, 80, True), (19, 64, 64, False)])
def test_a_product_of_the_normed_stream(num_rows, num_outputs, num_columns, has_bias, dtype):
    scaled = scale_stream_reference(normal(num_rows, num_columns, dtype=dtype), normal(num_columns, dtype=dtype, seed=3))
    weight = normal(num_outputs, num_columns, dtype=dtype, seed=2, scale=num_columns**-0.5)
    arguments = scaled, weight, normal(num_outputs, dtype=dtype, seed=4) if has_bias else None
    options = {"eps": EPS, "shape": shape_of(32, 32)}

    assert_equal(normed_product(*arguments, **options), normed_product_reference(*arguments, **options))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "num_columns", "splits", "has_bias"),
    [(1, 64, 256, 3, True), (16, 40, 200, 1, False), (19, 40, 200, 3, False), (5, 64, 96, 1, True), (2, 40, 128, 3, False)],
)
def test_a_product_is_added_to_the_residual_stream(num_rows, num_outputs, num_columns, splits, has_bias, dtype):
    """The last case has an empty last part of K."""
    x = normal(num_rows, num_columns, dtype=dtype)
    weight = normal(num_outputs, num_columns, dtype=dtype, seed=2, scale=num_columns**-0.5)
    bias = normal(num_outputs, dtype=dtype, seed=3) if has_bias else None
    found, expected = (normal(num_rows, num_outputs, dtype=dtype, seed=4) for _ in range(2))
    tickets, shape, norm = make_tickets(x.device), shape_of(32, 32, splits), normal(num_outputs, dtype=dtype, seed=5)

    scaled = added_product(x, weight, bias, found, norm, shape=shape, tickets=tickets)

    expected_scaled = added_product_reference(x, weight, bias, expected, norm, shape=shape, tickets=tickets)
    assert_equal(found, expected)
    assert_equal(scaled.values, expected_scaled.values)
    torch.testing.assert_close(scaled.squares.sum(1, keepdim=True), expected_scaled.squares, rtol=TOLERANCE[dtype], atol=0)
    assert not tickets.any(), "the next product counts from 0"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num_rows", "num_features", "num_columns"), [(1, 40, 80), (16, 64, 64), (19, 40, 64)])
def test_gates(num_rows, num_features, num_columns, dtype):
    scaled = scale_stream_reference(normal(num_rows, num_columns, dtype=dtype), normal(num_columns, dtype=dtype, seed=3))
    weight = normal(2 * num_features, num_columns, dtype=dtype, seed=2, scale=num_columns**-0.5)
    options = {"eps": EPS, "shape": shape_of(32, 32)}

    assert_equal(normed_gated(scaled, weight, **options), normed_gated_reference(scaled, weight, **options))


@pytest.mark.parametrize("dtype", TYPES)
def test_squares_of_several_tiles_are_summed(dtype):
    residual, norm = normal(3, 80, dtype=dtype), normal(80, dtype=dtype, seed=3)
    whole, weight = scale_stream(residual, norm), normal(40, 80, dtype=dtype, seed=2, scale=80**-0.5)
    parts = torch.stack([whole.squares * share for share in (0.25, 0.5, 0.25)], 1).view(3, 3)
    options = {"eps": EPS, "shape": shape_of(32, 32)}

    found = normed_gated(whole._replace(squares=parts), weight, **options)

    assert_equal(found, normed_gated_reference(scale_stream_reference(residual, norm), weight, **options))
