"""Products with activations in bfloat16: against float64 on the same rounded numbers, for processors that have them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.worker_svc.native.native_programs import NO_HEADS, RUNNABLE, product, team_of
from tests.worker_svc.native.test_experts import NUM, PLAIN, chosen_of
from tetrad.worker_svc.native.operands import Epilogue, NormWeights
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.weights import pack_pairs

SHAPES = [(1, 1), (31, 7), (32, 64), (33, 33), (100, 257), (40, 1024)]
ROWS = [1, 2, 7, 8, 9, 17, 65, 130]


@pytest.fixture(scope="module")
def team():
    found = team_of(RUNNABLE[0], 2)
    if not found.has_pair_products:
        pytest.skip("this processor does not multiply bfloat16")
    return found


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().double()


def exact(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return rounded(x) @ rounded(weight).T


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_rounded_numbers(team, shape):
    weight, bias = drawn(*shape), drawn(shape[0], seed=1)
    matrix = pack_pairs(team, weight)

    np.testing.assert_array_equal(matrix.unpack(np.arange(shape[0])), weight.bfloat16().float())
    for num_rows in ROWS:
        x = drawn(num_rows, shape[1], seed=num_rows)
        assert_near(product(team, matrix, x, bias=bias), exact(weight, x) + bias)


@pytest.mark.parametrize("size", [1, 15, 40, 70])
def test_a_gate(team, size):
    weight = drawn(2 * size, 65)
    matrix = pack_pairs(team, weight, paired=True)
    for num_rows in ROWS:
        x = drawn(num_rows, 65, seed=num_rows)

        found = product(team, matrix, x, epilogue=Epilogue.GATE)

        gate, up = exact(weight, x).chunk(2, dim=1)
        assert_near(found, F.silu(gate) * up)


def test_rows_have_the_same_bits_alone_and_together_on_any_team(team):
    matrix, x = pack_pairs(team, drawn(100, 300)), drawn(130, 300, seed=1)
    alone = torch.cat([product(team, matrix, row) for row in x.split(1)])

    for count in ROWS:
        np.testing.assert_array_equal(product(team, matrix, x[:count]), alone[:count])
    np.testing.assert_array_equal(product(team_of(RUNNABLE[0]), matrix, x), alone)


def test_weights_take_half_of_the_memory_of_float32(team):
    assert pack_pairs(team, drawn(64, 128)).size_bytes == 64 * 128 * 2


@pytest.mark.parametrize("broken", [torch.nan, -torch.nan, torch.inf, -torch.inf], ids=str)
def test_what_is_not_finite_reaches_the_result_of_its_row_alone(team, broken):
    matrix, x = pack_pairs(team, drawn(37, 256)), drawn(9, 256, seed=1)
    whole = product(team, matrix, x)
    x[4, 77] = broken

    found = product(team, matrix, x)

    assert not torch.isfinite(found[4]).any()
    np.testing.assert_array_equal(found[np.arange(9) != 4], whole[np.arange(9) != 4])


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7F800001, -1])
def test_a_nan_of_any_bits_stays_one(team, bits):
    x = torch.zeros(1, 64)
    x[0, 3] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)

    assert product(team, pack_pairs(team, drawn(32, 64)), x).isnan().all()


def test_a_norm_rounds_the_input_of_a_product(team):
    """To the same bits as the product does by itself."""
    matrix, x, weight = pack_pairs(team, drawn(48, 96)), drawn(20, 96, seed=1), drawn(96, seed=2)
    outs = []
    for reader in (None, matrix):
        builder = ProgramBuilder(team)
        source, normed, target = builder.buffer(96), builder.buffer(96), builder.buffer(48)
        builder.norm(NormWeights(weight, 1e-5), source, normed, reader=reader)
        builder.linear(matrix, None, normed, target, is_prepared=reader is not None)
        program = builder.build("normed", NO_HEADS)
        program.run(20, given={source: x.clone()})
        outs.append(program.result(target, 20).clone())

    np.testing.assert_array_equal(*outs)


def test_experts_are_products_of_their_matrices(team):
    builder, columns, routing = ProgramBuilder(team), 96, replace(PLAIN, is_renormalized=False)
    matrices = [pack_pairs(team, drawn(24, columns, seed=expert)) for expert in range(NUM)]
    scores, source, target, mixed = (builder.buffer(size) for size in (NUM, columns, 3 * 24, 24))
    chosen_experts = builder.route(routing, None, np.zeros(NUM, np.int64), scores)
    builder.experts(chosen_experts, matrices, None, source, target)
    builder.mix(chosen_experts, target, mixed)
    program = builder.build("experts", NO_HEADS)
    for num_rows in (1, 5, 200):
        x, given, out = drawn(num_rows, columns, seed=num_rows), drawn(num_rows, NUM, seed=1), torch.zeros(num_rows, 24)

        program.run(num_rows, given={scores: given.clone(), source: x, mixed: out})

        each = torch.stack([product(team, matrix, x) for matrix in matrices], 1)  # [T, E, 24]
        weights, chosen = chosen_of(routing, given, None)
        wanted = (each.gather(1, chosen[..., None].expand(-1, -1, 24)) * weights[..., None]).sum(1)
        np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5 * float(each.abs().max()))
