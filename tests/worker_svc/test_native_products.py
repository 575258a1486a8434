"""Products of the native kernels: float32 against torch, quantized ones against float64 on the same quanta and activations."""

import gguf
import numpy as np
import pytest
import torch

from tests.worker_svc.native_programs import NO_HEADS, RUNNABLE, product, team_of
from tetrad.worker_svc.checkpoint.source import QuantizedTensor
from tetrad.worker_svc.native.program import Epilogue, ProgramBuilder
from tetrad.worker_svc.native.weights import GGUF_FORMATS, pack_float, pack_gguf, pack_int8

Kind = gguf.GGMLQuantizationType
ROWS = [*range(1, 10), 17, 20, 65, 130]


@pytest.fixture(scope="module", params=RUNNABLE)
def team(request):
    return team_of(request.param)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantized(kind: Kind, rows: int, columns: int, seed: int = 0) -> QuantizedTensor:
    """Return a tensor of random quanta: gguf's own quantization where it has one, else random bytes with sane scales."""
    try:
        stored = gguf.quantize(drawn(rows, columns, seed=seed).numpy(), kind)
    except NotImplementedError:
        stored = _random_blocks(kind, rows, columns, seed)
    return QuantizedTensor(int(kind), (rows, columns), stored)


def _random_blocks(kind: Kind, rows: int, columns: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows, columns // per_block, block_bytes), np.uint8)
    halves = random.uniform(-0.01, 0.01, (rows, columns // per_block, 2)).astype(np.float16).view(np.uint8)
    if kind == Kind.Q6_K:
        blocks[..., -2:] = halves[..., :2]
    else:
        blocks[..., :4] = halves
    return blocks.reshape(rows, -1)


def dequantized(tensor: QuantizedTensor) -> torch.Tensor:
    return torch.from_numpy(gguf.dequantize(tensor.rows, Kind(tensor.kind)))


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
    """Exactly where scales are stored as they are; a K-quant's are products, rounded once more or less."""
    tensor = quantized(kind, 37, 512)
    expected = dequantized(tensor).numpy()

    found = pack_gguf(team, tensor).unpack(np.arange(37))

    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max() if "_K" in kind.name else 0)


@pytest.mark.parametrize("kind", GGUF_FORMATS, ids=lambda kind: kind.name)
def test_quantized_products(team, kind):
    for shape in ((37, 256), (16, 768)):
        tensor = quantized(kind, *shape, seed=shape[0])
        matrix, bias = pack_gguf(team, tensor), drawn(shape[0], seed=1)
        for num_rows in (*range(1, 10), 67):
            x = activations(num_rows, shape[1], seed=num_rows)

            found = product(team, matrix, x, bias=bias)

            assert_near(found, as_quantized(x) @ dequantized(tensor).T.double() + bias, 1e-5)


@pytest.mark.parametrize("kind", GGUF_FORMATS, ids=lambda kind: kind.name)
def test_extreme_quanta_and_activations_do_not_overflow(team, kind):
    """Sums of four products of bytes go through 16 bits on some machines."""
    blocks = np.full((16, 256 // gguf.GGML_QUANT_SIZES[kind][0], gguf.GGML_QUANT_SIZES[kind][1]), 255, np.uint8)
    half = np.array([1.0], np.float16).view(np.uint8)
    fields = {Kind.Q6_K: [208], Kind.Q4_0: [0], Kind.Q5_0: [0], Kind.Q8_0: [0]}.get(kind, [0, 2])
    for fill in (0, 127, 128, 255):
        blocks[:] = fill
        for at in fields:
            blocks[..., at : at + 2] = half
        tensor = QuantizedTensor(int(kind), (16, 256), blocks.reshape(16, -1).copy())
        x = torch.tensor([1.0, -1.0]).repeat_interleave(256).view(2, 256)

        found = product(team, pack_gguf(team, tensor), x)

        assert_near(found, x.double() @ dequantized(tensor).T.double(), 1e-5)


@pytest.mark.parametrize("kind", [None, Kind.Q4_0, Kind.Q6_K], ids=str)
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

    assert not matrix.is_quantized
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
