"""Products with quantized weights: each kernel equals its float64 reference over odd sizes, splits, views and every type."""

import pytest
import torch

from tetrad.worker_svc.kernels.byte_matmul import byte_matmul, byte_matmul_reference
from tetrad.worker_svc.kernels.int4_matmul import int4_matmul, int4_matmul_reference, pack_int4, unpack_int4
from tetrad.worker_svc.kernels.quantize_rows import quantize_rows, quantize_rows_reference
from tetrad.worker_svc.kernels.split_k import make_tickets
from tetrad.worker_svc.kernels.tile_shapes import TileShape

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter multiplies bfloat16 as if its bits were integers; compiled for a GPU it is what it should be.
TYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
WHOLE = TileShape(rows=16, outputs=32, columns=64, splits=1, warps=4, stages=2)
SPLIT = TileShape(rows=16, outputs=32, columns=32, splits=3, warps=4, stages=2)
SIZES = [(0, 8, 64), (1, 33, 96), (19, 40, 288)]
"""T, N, K."""


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(DEVICE)


def integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(8)).to(DEVICE)


def activations(num_rows: int, num_columns: int, dtype: torch.dtype) -> torch.Tensor:
    """A view of wider rows."""
    return normal(num_rows, num_columns + 16).to(dtype)[:, :num_columns]


def scales_of(num_groups: int, num_outputs: int) -> torch.Tensor:
    return normal(num_groups, num_outputs).abs() / 100


def assert_equal(found, expected):
    tolerance = TOLERANCE[found.dtype]
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def check_bytes(x, weight, scales, bias, shape, *, group, dtype=None, row_scales=None):
    tickets = make_tickets(DEVICE)
    options = {"dtype": dtype or x.dtype, "group": group, "shape": shape, "tickets": tickets, "row_scales": row_scales}

    found = byte_matmul(x, weight, scales, bias, **options)

    assert_equal(found, byte_matmul_reference(x, weight, scales, bias, **options))
    assert not tickets.any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [WHOLE, SPLIT])
@pytest.mark.parametrize(("rows", "outputs", "columns"), SIZES)
def test_int8_with_a_scale_a_row(rows, outputs, columns, shape, dtype):
    weight = integers(-127, 128, outputs, columns).to(torch.int8)
    bias = normal(outputs).to(dtype)

    check_bytes(activations(rows, columns, dtype), weight, scales_of(1, outputs), bias, shape, group=columns)


@pytest.mark.parametrize("columns", [31, 70, 129])
def test_int8_of_a_width_that_no_tile_divides(columns):
    weight = integers(-127, 128, 20, columns).to(torch.int8)

    check_bytes(activations(3, columns, torch.float32), weight, scales_of(1, 20), None, WHOLE, group=columns)


@pytest.mark.parametrize("shape", [WHOLE, SPLIT])
@pytest.mark.parametrize("group", [32, 96])
def test_int8_with_a_scale_a_group(group, shape):
    weight = integers(-127, 128, 40, 288).to(torch.int8)
    scales = scales_of(288 // group, 40)

    check_bytes(activations(5, 288, torch.float32), weight, scales, normal(40), shape, group=group)


@pytest.mark.parametrize("as_bits", [False, True])
@pytest.mark.parametrize("group", [128, 200])
def test_fp8_weights_under_floats(group, as_bits):
    """The last group is half a group."""
    weight = (normal(40, 200) * 3).to(torch.float8_e4m3fn)
    scales = scales_of(-(-200 // group), 40)

    check_bytes(
        activations(5, 200, torch.float16), weight.view(torch.uint8) if as_bits else weight, scales, None, WHOLE, group=group
    )


def test_every_value_of_fp8_is_widened_exactly_from_its_bits():
    bits = torch.arange(256, dtype=torch.uint8, device=DEVICE)
    bits = bits[bits & 0x7F != 0x7F].repeat(2)[:508]  # not NaN
    weight = torch.zeros(508, 32, dtype=torch.uint8, device=DEVICE)
    weight[:, 0] = bits
    x = torch.ones(1, 32, device=DEVICE)

    options = {"dtype": torch.float32, "group": 32, "shape": WHOLE, "tickets": make_tickets(DEVICE)}
    found = byte_matmul(x, weight, torch.ones(1, 508, device=DEVICE), None, **options)

    assert torch.equal(found[0], bits.view(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("shape", [WHOLE, SPLIT])
@pytest.mark.parametrize(("rows", "outputs", "columns", "group"), [(1, 33, 96, 96), (19, 40, 288, 288), (3, 20, 320, 128)])
def test_fp8_weights_under_fp8_activations(rows, outputs, columns, group, shape):
    x, row_scales = quantize_rows_reference(activations(rows, columns, torch.float32), group)
    weight = (normal(outputs, columns) * 3).to(torch.float8_e4m3fn)
    scales = scales_of(len(row_scales), outputs)

    check_bytes(x, weight, scales, None, shape, group=group, dtype=torch.float32, row_scales=row_scales)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [WHOLE, SPLIT])
@pytest.mark.parametrize(("rows", "outputs", "columns"), SIZES)
def test_int4(rows, outputs, columns, shape, dtype):
    group = 96 if columns % 96 == 0 else 32
    packed = pack_int4(integers(0, 16, outputs, columns))
    zeros = integers(0, 17, columns // group, outputs).to(torch.uint8)
    scales, bias = scales_of(columns // group, outputs).to(dtype), normal(outputs).to(dtype)
    arguments = (activations(rows, columns, dtype), packed, scales, zeros, bias)
    tickets = make_tickets(DEVICE)

    found = int4_matmul(*arguments, shape=shape, tickets=tickets)

    assert_equal(found, int4_matmul_reference(*arguments, shape=shape, tickets=tickets))
    assert not tickets.any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [WHOLE, SPLIT])
@pytest.mark.parametrize("group", [16, 32])
def test_values_of_4_bits_are_looked_up_in_a_table(group, shape, dtype):
    x, packed = activations(3, 320, dtype), pack_int4(integers(0, 16, 40, 320))
    scales, bias = scales_of(320 // group, 40).to(dtype), normal(40).to(dtype)
    options = {"table": normal(16).to(dtype), "shape": shape, "tickets": make_tickets(DEVICE)}

    found = int4_matmul(x, packed, scales, None, bias, **options)

    assert_equal(found, int4_matmul_reference(x, packed, scales, None, bias, **options))


def test_int4_is_packed_in_halves_of_blocks_of_32():
    quanta = torch.zeros(1, 64, dtype=torch.uint8)
    quanta[0, 33], quanta[0, 49] = 5, 9

    packed = pack_int4(quanta)

    assert packed.shape == (1, 32)
    assert packed[0, 17] == 5 | 9 << 4
    assert torch.equal(unpack_int4(packed), quanta)


@pytest.mark.parametrize(("rows", "columns", "group"), [(0, 64, 64), (1, 70, 70), (3, 300, 128)])
def test_quantized_rows_and_their_scales(rows, columns, group):
    """Values that fp8 has: the interpreter rounds others up to a power of two as if they were half of it."""
    x = (normal(rows, columns + 8) * 30).to(torch.float8_e4m3fn).float()[:, :columns]
    x[:, ::group] = 448.0

    found, scales = quantize_rows(x, group)
    expected, expected_scales = quantize_rows_reference(x, group)

    torch.testing.assert_close(scales, expected_scales)
    assert torch.equal(found.float(), expected.float())


def test_a_row_of_zeros_stays_zeros():
    found, scales = quantize_rows(torch.zeros(2, 64, device=DEVICE), 64)

    assert not found.float().any() and scales.isfinite().all()
