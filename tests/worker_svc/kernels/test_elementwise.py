"""Norms, activations and rotation: each kernel equals its reference over odd sizes, views, empty inputs and every type."""

import pytest
import torch

from tetrad.worker_svc.kernels import activation, rms_norm, rotate_and_cache

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(DEVICE, dtype)


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE.get(found.dtype, 0.07)
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "features"), [(0, 64), (1, 1), (3, 80), (5, 576), (2, 1536)])
def test_rms_norm(rows, features, dtype):
    # A view of wider rows, as q and k are of qkv.
    x = normal(rows, features + 3, dtype=dtype)[:, :features]
    weight = normal(features, dtype=dtype)

    assert_equal(rms_norm.rms_norm(x, weight, 1e-5), rms_norm.rms_norm_reference(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "features"), [(0, 64), (1, 7), (3, 576)])
def test_add_rms_norm_adds_to_the_residual_and_norms_that(rows, features, dtype):
    x, weight = normal(rows, features, dtype=dtype), normal(features, dtype=dtype)
    residual, expected_residual = (normal(rows, features, dtype=dtype) * 3 for _ in range(2))

    found = rms_norm.add_rms_norm(x, residual, weight, 1e-6)
    expected = rms_norm.add_rms_norm_reference(x, expected_residual, weight, 1e-6)

    assert_equal(found, expected)
    assert_equal(residual, expected_residual)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "features"), [(0, 8), (1, 1), (3, 1537), (2, 96)])
@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul"])
def test_gated_activations(name, rows, features, dtype):
    gate_up = normal(rows, 2 * features + 5, dtype=dtype)[:, : 2 * features] * 3

    found = getattr(activation, name)(gate_up)

    assert_equal(found, getattr(activation, f"{name}_reference")(gate_up))


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 32), (96, 96), (128, 64), (256, 256)])
def test_rotation_turns_queries_and_writes_keys_and_values(head_dim, rotary_dim, group):
    check_rotation(torch.float32, torch.float32, head_dim, rotary_dim, num_heads=2 * group, num_kv_heads=2)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (80, 32), (96, 96)])
def test_heads_are_normed_before_they_turn(head_dim, rotary_dim):
    weights = normal(2, head_dim) + 1
    check_rotation(
        torch.float32,
        torch.float32,
        head_dim,
        rotary_dim,
        num_heads=6,
        num_kv_heads=2,
        head_norms=(weights[0], weights[1]),
        eps=1e-3,
    )


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float16])
def test_a_cache_of_another_type(cache_dtype):
    check_rotation(torch.bfloat16, cache_dtype, 64, 64, num_heads=3, num_kv_heads=1)


def test_a_cache_in_fp8_holds_values_divided_by_their_scale():
    """Values that fp8 has: the interpreter rounds others up to a power of two as if they were half of it."""
    qkv = normal(3, 3 * 64).to(torch.float8_e4m3fn).to(torch.bfloat16)
    unturned = torch.cat([torch.ones(3, 32), torch.zeros(3, 32)], 1).to(DEVICE)
    slots = torch.tensor([2, 0, 5], device=DEVICE)
    cache, expected = (torch.zeros(2, 4, 2, 1, 64, device=DEVICE).to(torch.float8_e4m3fn) for _ in range(2))

    rotate_and_cache.rotate_and_cache(qkv, unturned, slots, cache, 1, 0.5, 2.0)
    rotate_and_cache.rotate_and_cache_reference(qkv, unturned, slots, expected, 1, 0.5, 2.0)

    assert torch.equal(cache.float(), expected.float())
    assert torch.equal(cache.view(8, 2, 64)[slots, 0].float() * 0.5, qkv[:, 64:128].float())


def check_rotation(dtype, cache_dtype, head_dim, rotary_dim, *, num_heads, num_kv_heads, **norms):
    """Five tokens, one of them padding, to places out of order in pages with holes."""
    block_size = 4
    width = (num_heads + 2 * num_kv_heads) * head_dim
    qkv, expected_qkv = (normal(5, width + 16, dtype=dtype)[:, :width] for _ in range(2))
    angles = torch.outer(torch.tensor([0.0, 3.0, 1000.0, 7.0, 8.0]), torch.logspace(0, -4, rotary_dim // 2)).to(DEVICE)
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1)
    slots = torch.tensor([9, -1, 0, 23, 10], device=DEVICE)
    cache, expected_cache = (
        torch.full((6, block_size, 2, num_kv_heads, head_dim), 5.0, device=DEVICE).to(cache_dtype) for _ in range(2)
    )

    rotate_and_cache.rotate_and_cache(qkv, cos_sin, slots, cache, num_heads, **norms)
    rotate_and_cache.rotate_and_cache_reference(expected_qkv, cos_sin, slots, expected_cache, num_heads, **norms)

    assert_equal(qkv, expected_qkv)
    assert_equal(cache, expected_cache)
