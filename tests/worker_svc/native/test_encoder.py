"""The native operations of encoders on every kind of machine: attention within packed prompts, rotation, split products."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.worker_svc.native.native_programs import RUNNABLE, product, team_of
from tetrad.worker_svc.layers.rotary import rotary_of
from tetrad.worker_svc.native.operands import Epilogue
from tetrad.worker_svc.native.program import PackedTokens
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.structures import Heads
from tetrad.worker_svc.native.weights import pack_fixed, pack_split

LENGTHS = (1, 7, 33, 70, 8)


def packed(lengths):
    starts = np.cumsum(lengths) - lengths
    positions = np.concatenate([np.arange(length) for length in lengths])
    return PackedTokens(positions, starts.astype(np.int64), np.array(lengths, np.int64))


def run(team, qkv, lengths, *, num_heads, window=0, rotary_dim=0):
    """Return the attention of packed rows [q | k | v], rotated before that if `rotary_dim` is not 0."""
    width = qkv.shape[1] // 3
    program = ProgramBuilder(team)
    heads, attended = program.buffer(3 * width), program.buffer(width)
    if rotary_dim:
        program.rotate_packed(rotary_of(rotary_dim, 100.0, None).cos_sin(torch.arange(max(lengths))), heads)
    program.attend_packed(heads, attended, window=window)
    shape = Heads(num_heads=num_heads, num_kv_heads=num_heads, head_dim=width // num_heads, rotary_dim=rotary_dim)
    built = program.build("test", shape)
    built.run(len(qkv), packed=packed(lengths), given={heads: qkv.clone()})
    return built.result(attended, len(qkv)).clone()


def expected(qkv, lengths, *, num_heads, window=0):
    found = []
    for part in torch.split(qkv, list(lengths)):
        query, key, value = part.view(len(part), 3, num_heads, -1).permute(1, 2, 0, 3)
        places = torch.arange(len(part))
        mask = (places[:, None] - places).abs() <= window if window else None
        found.append(F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(0, 1).flatten(1))
    return torch.cat(found)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("window", [0, 3, 40])
@pytest.mark.parametrize("head_dim", [8, 32, 40, 64])
def test_attention_within_packed_prompts_equals_that_of_torch(target, window, head_dim):
    torch.manual_seed(0)
    qkv = torch.randn(sum(LENGTHS), 3 * 3 * head_dim)

    together = run(team_of(target, 2), qkv, LENGTHS, num_heads=3, window=window)
    alone = [run(team_of(target), part, [len(part)], num_heads=3, window=window) for part in torch.split(qkv, LENGTHS)]

    torch.testing.assert_close(together, expected(qkv, LENGTHS, num_heads=3, window=window), atol=2e-6, rtol=1e-5)
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("rotary_dim", [8, 16])
def test_queries_and_keys_of_packed_prompts_turn_by_their_place_in_the_prompt(target, rotary_dim):
    torch.manual_seed(0)
    qkv = torch.randn(sum(LENGTHS), 3 * 2 * 16)

    found = run(team_of(target), qkv, LENGTHS, num_heads=2, rotary_dim=rotary_dim)

    angles = rotary_of(rotary_dim, 100.0, None).cos_sin(torch.from_numpy(packed(LENGTHS).positions)).unsqueeze(1)
    cosines, sines = angles.chunk(2, dim=-1)
    turned = qkv.clone()
    heads, half = turned[:, : 2 * 2 * 16].view(len(qkv), 4, 16), rotary_dim // 2
    first, second = heads[..., :half].clone(), heads[..., half:rotary_dim].clone()
    heads[..., :half] = first * cosines - second * sines
    heads[..., half:rotary_dim] = second * cosines + first * sines
    torch.testing.assert_close(found, expected(turned, LENGTHS, num_heads=2), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("num_tokens", [1, 31, 33, 100])
@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (48, 40), (100, 384)])
@pytest.mark.parametrize("epilogue", [Epilogue.STORE, Epilogue.ACTIVATE, Epilogue.GATE])
def test_split_products_are_off_by_less_than_two_to_the_minus_fifteenth(num_tokens, rows, columns, epilogue):
    team = team_of(RUNNABLE[0], 2)
    if not team.has_split_products:
        pytest.skip("this processor has no tiles of bfloat16")
    torch.manual_seed(0)
    weight, x, bias = torch.randn(rows, columns), torch.randn(num_tokens, columns), torch.randn(rows)

    found = product(team, pack_split(team, weight, paired=epilogue is Epilogue.GATE), x, bias=bias, epilogue=epilogue)

    exact = x.double() @ weight.double().T + bias
    scale = x.double().norm(dim=1, keepdim=True) * weight.double().norm(dim=1) * 2**-15
    if epilogue is Epilogue.GATE:
        gate, up = exact.chunk(2, dim=1)
        exact, scale = F.silu(gate) * up, (scale[:, : rows // 2] + scale[:, rows // 2 :]) * (1 + exact.abs().max())
    elif epilogue is Epilogue.ACTIVATE:
        exact = F.silu(exact)
    assert ((found - exact).abs() <= scale + 1e-6).all()


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("num_tokens", [1, 9, 100])
@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (48, 40), (100, 384)])
@pytest.mark.parametrize("epilogue", [Epilogue.STORE, Epilogue.GATE])
def test_fixed_products_are_off_by_less_than_two_to_the_minus_thirteenth(target, num_tokens, rows, columns, epilogue):
    team = team_of(target, 2)
    torch.manual_seed(0)
    weight, x, bias = torch.randn(rows, columns), torch.randn(num_tokens, columns), torch.randn(rows)
    weight[3, 5], x[0, 7], x[:, 9] = 1e4, -1e4, 0.0
    matrix = pack_fixed(team, weight, paired=epilogue is Epilogue.GATE)

    found = product(team, matrix, x, bias=bias, epilogue=epilogue)
    alone = torch.cat([product(team, matrix, row, bias=bias, epilogue=epilogue) for row in x.split(1)])

    assert torch.equal(found, alone)
    exact = x.double() @ weight.double().T + bias
    scale = x.double().norm(dim=1, keepdim=True) * weight.double().norm(dim=1) * 2**-13
    if epilogue is Epilogue.GATE:
        gate, up = exact.chunk(2, dim=1)
        exact, scale = F.silu(gate) * up, (scale[:, : rows // 2] + scale[:, rows // 2 :]) * (1 + exact.abs().max())
    assert ((found - exact).abs() <= scale + 1e-6).all()


@pytest.mark.parametrize("target", RUNNABLE)
def test_sums_of_fixed_products_do_not_overflow(target):
    """All numbers of a block are equal, so that its sum is the largest that its norm allows."""
    team = team_of(target)

    found = product(team, pack_fixed(team, torch.full((32, 96), 3.0)), torch.full((2, 96), 5.0))

    torch.testing.assert_close(found, torch.full((2, 32), 1440.0), rtol=2e-4, atol=0)


@pytest.mark.parametrize("target", RUNNABLE)
def test_what_is_not_finite_stays_so_in_its_own_row_of_fixed_products(target):
    team = team_of(target)
    x = torch.randn(5, 64)
    x[1, 5], x[2, 7], x[3], x[4] = torch.nan, -torch.inf, 3e38, 1e-30

    found = product(team, pack_fixed(team, torch.randn(32, 64)), x)

    assert found[0].isfinite().all()
    assert not found[1:4].isfinite().any()
    assert found[4].abs().max() < 1e-20


def test_an_activation_that_is_not_finite_stays_so_in_its_own_row():
    team = team_of(RUNNABLE[0])
    if not team.has_split_products:
        pytest.skip("this processor has no tiles of bfloat16")
    x = torch.randn(3, 32)
    x[1, 5], x[2, 7] = torch.nan, torch.inf

    found = product(team, pack_split(team, torch.randn(32, 32)), x)

    assert found[0].isfinite().all()
    assert not found[1:].isfinite().any()
