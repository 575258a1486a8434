"""Products of the native kernels: float32 against torch, quantized ones against float64 on the same quanta and activations."""

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.worker_svc.gguf_rows import fill_scales, random_rows
from tests.worker_svc.native.native_programs import NO_HEADS, RUNNABLE, product, team_of
from tetrad.worker_svc.checkpoint.gguf_values import dequantize
from tetrad.worker_svc.checkpoint.source import QuantizedTensor
from tetrad.worker_svc.native.formats import GGUF_FORMATS
from tetrad.worker_svc.native.operands import Epilogue
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.weights import pack_float, pack_gguf, pack_int8

Kind = gguf.GGMLQuantizationType
ROUNDED_SCALES = 1e-3
"""In half precision, of formats whose scales are products of two numbers."""
ROWS = [*range(1, 10), 17, 20, 65, 130]


ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


@pytest.fixture(scope="module", params=RUNNABLE)
def team(request):
    return team_of(request.param)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantized(kind: Kind, rows: int, columns: int, seed: int = 0) -> QuantizedTensor:
    """Return a tensor of random quanta."""
    return QuantizedTensor(int(kind), (rows, columns), random_rows(kind, drawn(rows, columns, seed=seed).numpy()))


def dequantized(tensor: QuantizedTensor) -> torch.Tensor:
    return torch.from_numpy(dequantize(tensor.rows, Kind(tensor.kind)))


def activations(num_rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return random rows without values so near to a tie that a rounding more or less would decide it."""
    x = drawn(num_rows, columns, seed=seed).unflatten(1, (-1, 32))
    quanta = x.double() * 127 / x.abs().amax(2, keepdim=True)
    is_tie = (quanta - quanta.floor() - 0.5).abs() < 1e-3
    return torch.where(is_tie, torch.zeros_like(x), x).flatten(1)


def as_quantized(x: torch.Tensor) -> torch.Tensor:
    """Return activations in float64 as the kernels take them: 8 bits and one scale for 32 columns."""
    blocks = x.unflatten(1, (-1, 32))
    top = blocks.abs().amax(2, keepdim=True)
    inverse = torch.where(top > 0, 127.0 / top, 0.0)
    return ((blocks * inverse).round().double() * (top / 127.0).double()).flatten(1)


def scale_error(kind: Kind) -> float:
    """Return the relative error of a format's scales as they are packed."""
    if kind.name.startswith(("Q2_K", "Q3_K", "IQ1", "IQ2", "IQ3")):
        return ROUNDED_SCALES
    return 2e-6 if "_K" in kind.name or kind == Kind.IQ4_XS else 0


def assert_near(found: torch.Tensor, expected: torch.Tensor, relative: float) -> None:
    """Near in units of the largest value: sums of products that cancel have no digits of their own."""
    assert torch.isfinite(found).all()
    assert (found - expected).abs().max() <= relative * expected.abs().max()


@pytest.mark.parametrize("shape", [(1, 1), (31, 7), (33, 33), (64, 96), (100, 257)], ids=str)
def test_float_products(team, shape):
    weight, bias = drawn(*shape), drawn(shape[0], seed=1)
    matrix = pack_float(team, weight)

    np.testing.assert_array_equal(matrix.unpack(np.arange(shape[0])), weight)
    for num_rows in ROWS:
        x = drawn(num_rows, shape[1], seed=num_rows)
        assert_near(product(team, matrix, x, bias=bias), x.double() @ weight.T.double() + bias, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_of_16_bits_are_those_of_the_same_numbers_in_32(team, dtype):
    """To the last bit, and so are rows that are unpacked."""
    for shape in ((1, 1), (33, 33), (100, 257)):
        weight = drawn(*shape).to(dtype)
        narrow, wide = pack_float(team, weight), pack_float(team, weight.float())

        assert narrow.size_bytes * 2 == wide.size_bytes
        np.testing.assert_array_equal(narrow.unpack(np.arange(shape[0])), weight.float())
        for num_rows in ROWS:
            x = drawn(num_rows, shape[1], seed=num_rows)
            np.testing.assert_array_equal(product(team, narrow, x), product(team, wide, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_gate_of_16_bits(team, dtype):
    weight = drawn(80, 64).to(dtype)
    narrow, wide = (pack_float(team, each, paired=True) for each in (weight, weight.float()))
    for num_rows in (1, 11, 66):
        x = drawn(num_rows, 64, seed=num_rows)
        found, expected = (product(team, matrix, x, epilogue=Epilogue.GATE) for matrix in (narrow, wide))
        np.testing.assert_array_equal(found, expected)


def test_products_over_many_columns_keep_their_digits(team):
    """One sum over all columns would be off by 1.6e-6."""
    weight, x = drawn(40, 8192), drawn(4, 8192, seed=1)
    expected = x.double() @ weight.T.double()

    found = product(team, pack_float(team, weight), x)

    assert (found - expected).norm() < 5e-7 * expected.norm()


@pytest.mark.parametrize("num_rows", [1, 13, 67])
@pytest.mark.parametrize("epilogue", [Epilogue.STORE, Epilogue.ADD])
def test_a_product_touches_no_columns_but_its_own(team, epilogue, num_rows):
    weight, x, before = drawn(37, 50), drawn(num_rows, 50, seed=1), drawn(num_rows, 45, seed=2)

    after = product(team, pack_float(team, weight), x, epilogue=epilogue, target=before, column=5)

    expected = before.double()
    expected[:, 5:42] = x.double() @ weight.T.double() + (before[:, 5:42] if epilogue == Epilogue.ADD else 0)
    assert_near(after, expected, 1e-5)
    np.testing.assert_array_equal(after[:, :5], before[:, :5])
    np.testing.assert_array_equal(after[:, 42:], before[:, 42:])


@pytest.mark.parametrize("size", [1, 15, 16, 40, 70])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_gate_whose_size_fills_no_panel(team, size, with_bias):
    weight, bias = drawn(2 * size, 64), drawn(2 * size, seed=1) if with_bias else None
    matrix = pack_float(team, weight, paired=True)
    for num_rows in (1, 6, 11, 66):
        x = drawn(num_rows, 64, seed=num_rows)

        found = product(team, matrix, x, bias=bias, epilogue=Epilogue.GATE)

        gate, up = (x.double() @ weight.T.double() + (0 if bias is None else bias)).chunk(2, dim=1)
        assert_near(found, torch.nn.functional.silu(gate) * up, 1e-5)


@pytest.mark.parametrize("kind", GGUF_FORMATS, ids=lambda kind: kind.name)
def test_quantized_matrices_unpack_to_what_gguf_says(team, kind):
    """Exactly where scales are stored as they are; others are products of two numbers, rounded once more or less."""
    tensor = quantized(kind, 37, 512)
    expected = dequantized(tensor).numpy()

    found = pack_gguf(team, tensor).unpack(np.arange(37))

    np.testing.assert_allclose(found, expected, rtol=0, atol=scale_error(kind) * np.abs(expected).max())


@pytest.mark.parametrize("kind", GGUF_FORMATS, ids=lambda kind: kind.name)
def test_quantized_products(team, kind):
    for shape in ((37, 256), (16, 768)):
        tensor = quantized(kind, *shape, seed=shape[0])
        matrix, bias = pack_gguf(team, tensor), drawn(shape[0], seed=1)
        for num_rows in (*range(1, 10), 67):
            x = activations(num_rows, shape[1], seed=num_rows)

            found = product(team, matrix, x, bias=bias)

            assert_near(found, as_quantized(x) @ dequantized(tensor).T.double() + bias, max(1e-5, scale_error(kind)))


@pytest.mark.parametrize("kind", GGUF_FORMATS, ids=lambda kind: kind.name)
def test_extreme_quanta_and_activations_do_not_overflow(team, kind):
    """Sums of four products of bytes go through 16 bits on some machines."""
    blocks = np.full((16, 256 // gguf.GGML_QUANT_SIZES[kind][0], gguf.GGML_QUANT_SIZES[kind][1]), 255, np.uint8)
    for fill in (0, 127, 128, 255):
        blocks[:] = fill
        fill_scales(kind, blocks, 1.0)
        tensor = QuantizedTensor(int(kind), (16, 256), blocks.reshape(16, -1).copy())
        x = torch.tensor([1.0, -1.0]).repeat_interleave(256).view(2, 256)

        found = product(team, pack_gguf(team, tensor), x)

        assert_near(found, x.double() @ dequantized(tensor).T.double(), max(1e-5, scale_error(kind)))


@pytest.mark.parametrize("kind", [None, Kind.Q4_0, Kind.Q6_K, Kind.IQ4_XS], ids=str)
@pytest.mark.parametrize("size", [8, 24, 40])
def test_a_quantized_gate(team, kind, size):
    tensor = None if kind is None else quantized(kind, 2 * size, 256)
    weight = drawn(2 * size, 256)
    matrix = pack_int8(team, weight, paired=True) if tensor is None else pack_gguf(team, tensor, paired=True)
    known = torch.from_numpy(pack_int8(team, weight).unpack(np.arange(2 * size))) if tensor is None else dequantized(tensor)
    for num_rows in (1, 11):
        x = activations(num_rows, 256, seed=num_rows) / 16

        found = product(team, matrix, x, epilogue=Epilogue.GATE)

        gate, up = (as_quantized(x) @ known.T.double()).chunk(2, dim=1)
        assert_near(found, torch.nn.functional.silu(gate) * up, 1e-5)


def test_int8_is_as_near_as_eight_bits_are(team):
    weight, x = drawn(33, 96), activations(5, 96, seed=1)
    matrix = pack_int8(team, weight)
    unpacked = torch.from_numpy(matrix.unpack(np.arange(33)))

    tops = weight.unflatten(1, (-1, 32)).abs().amax(2, keepdim=True).expand(-1, -1, 32).flatten(1)

    assert ((unpacked - weight).abs() <= tops * (0.501 / 127)).all()
    assert_near(product(team, matrix, x), as_quantized(x) @ unpacked.T.double(), 1e-5)


def test_int8_of_columns_that_32_does_not_divide_stays_float32(team):
    weight = drawn(5, 40)

    matrix = pack_int8(team, weight)

    assert matrix.takes_floats
    np.testing.assert_array_equal(matrix.unpack(np.arange(5)), weight)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("kind", [None, Kind.Q4_1, Kind.Q8_0, Kind.Q6_K], ids=str)
def test_what_is_not_finite_reaches_the_result_of_its_row_alone(team, kind, broken):
    matrix = pack_float(team, drawn(37, 256)) if kind is None else pack_gguf(team, quantized(kind, 37, 256))
    x = drawn(9, 256, seed=1)
    whole = product(team, matrix, x)
    x[4, 77] = broken

    found = product(team, matrix, x)

    assert not torch.isfinite(found[4]).any()
    np.testing.assert_array_equal(found[np.arange(9) != 4], whole[np.arange(9) != 4])


@pytest.mark.parametrize("broken", [torch.nan, torch.inf], ids=str)
def test_what_is_not_finite_in_weights_is_not_hidden_by_int8(team, broken):
    weight = drawn(20, 64)
    weight[3, 40] = broken

    found = product(team, pack_int8(team, weight), drawn(2, 64, seed=1))

    assert not torch.isfinite(found[:, 3]).any()
    assert torch.isfinite(found[:, np.arange(20) != 3]).all()


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-41, 1e-38, 1e-30, 1e30], ids=str)
def test_tiny_and_huge_activations(team, scale):
    """The inverse of a scale near the smallest number there is would be infinite."""
    tensor = quantized(Kind.Q8_0, 20, 64)
    x = drawn(3, 64, seed=1) * scale

    found = product(team, pack_gguf(team, tensor), x)

    expected = x.double() @ dequantized(tensor).T.double()
    assert_near(found, expected, 0.02 if scale >= 1e-30 else 1.01)


@pytest.mark.parametrize("num_threads", [2, 4])
@pytest.mark.parametrize("kind", [None, Kind.Q4_K], ids=str)
def test_a_team_gives_the_same_bits(kind, num_threads):
    alone, team = team_of(RUNNABLE[0]), team_of(RUNNABLE[0], num_threads)
    x, weight = drawn(70, 256), drawn(333, 256, seed=1)
    results = []
    for each in (alone, team):
        matrix = pack_float(each, weight) if kind is None else pack_gguf(each, quantized(kind, 333, 256))
        results.append([product(each, matrix, x) for _ in range(20)])

    for found in results[1]:
        np.testing.assert_array_equal(found, results[0][0])


def test_an_operation_begins_when_the_one_before_it_is_done_by_all():
    """A chain whose every link reads what all threads have written; items are few, so that someone is always ahead."""
    results, weight = [], drawn(128, 128) / 12
    for num_threads in (1, 2, 4):
        team = team_of(RUNNABLE[0], num_threads)
        builder, matrix = ProgramBuilder(team), pack_float(team, weight)
        buffers = [builder.buffer(128) for _ in range(2)]
        for link in range(40):
            builder.linear(matrix, None, buffers[link % 2], buffers[1 - link % 2])
        chain = builder.build("chain", NO_HEADS)
        for repeat in range(50):
            given = [drawn(5, 128), torch.full((5, 128), float(repeat))]
            chain.run(5, given=dict(zip(buffers, given, strict=True)))
            results.append(given[0])

    for found in results:
        np.testing.assert_array_equal(found, results[0])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_applied_to_a_product_or_to_the_gate_of_a_pair(team, name):
    weights, bias, x = drawn(90, 64) / 3, drawn(90, seed=1), drawn(5, 64, seed=2)
    outputs = torch.nn.functional.linear(x.double(), weights.double(), bias.double())
    gate, up = outputs.chunk(2, dim=1)

    plain = product(team, pack_float(team, weights), x, bias=bias, epilogue=Epilogue.ACTIVATE, activation=name)
    gated = product(team, pack_float(team, weights, paired=True), x, bias=bias, epilogue=Epilogue.GATE, activation=name)

    function = ACTIVATIONS[name]
    np.testing.assert_allclose(plain, function(outputs), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(gated, function(gate) * up, rtol=2e-5, atol=2e-4)


def test_a_product_is_scaled_before_it_is_added(team):
    weights, x, before = drawn(24, 32), drawn(3, 32, seed=1), drawn(3, 24, seed=2)

    out = product(team, pack_float(team, weights), x, epilogue=Epilogue.ADD, target=before, scale=0.22)

    np.testing.assert_allclose(out, before + 0.22 * (x @ weights.T), atol=1e-5)
