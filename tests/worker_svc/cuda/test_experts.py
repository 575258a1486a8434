"""Mixtures of experts on the CUDA device, interpreted: grouped products equal a computation of all tokens by all experts."""

import pytest
import torch

from tetrad.worker_svc.cuda import experts
from tetrad.worker_svc.cuda.experts import GroupedExperts, mix_of
from tetrad.worker_svc.kernels.expert_weights import ExpertWeights, stacked
from tetrad.worker_svc.layers.activation import activation, gate_of
from tetrad.worker_svc.layers.experts import AllExperts
from tetrad.worker_svc.layers.linear import PlainLinear
from tetrad.worker_svc.layers.mlp import Expert, GatedMlp, PlainMlp

HIDDEN, SIZE, NUM_EXPERTS = 24, 20, 5
RANDOM = torch.Generator().manual_seed(1)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=RANDOM)


def linear(outputs: int, inputs: int, *, has_bias: bool = True) -> PlainLinear:
    return PlainLinear(normal(outputs, inputs), normal(outputs) if has_bias else None)


def gated() -> Expert:
    return GatedMlp(linear(2 * SIZE, HIDDEN), linear(HIDDEN, SIZE), gate_of("silu", clamp=2.0))


def plain() -> Expert:
    return PlainMlp(linear(SIZE, HIDDEN, has_bias=False), linear(HIDDEN, SIZE, has_bias=False), activation("relu2"))


@pytest.mark.parametrize("make", [gated, plain])
def test_grouped_experts_compute_what_all_do(make, monkeypatch):
    """Five tokens, of which two are computed at once."""
    monkeypatch.setattr(experts, "_PAIRS_AT_ONCE", 5)
    layer, x, weights = {number: make() for number in range(NUM_EXPERTS)}, normal(5, HIDDEN), normal(5, 2)
    chosen = normal(5, NUM_EXPERTS).topk(2)[1]
    expected = AllExperts(layer, NUM_EXPERTS)(x, weights, chosen)

    mix = mix_of(layer, NUM_EXPERTS)

    assert isinstance(mix, GroupedExperts)
    torch.testing.assert_close(mix(x, weights, chosen), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", [GroupedExperts, AllExperts])
def test_ranks_with_whole_experts_add_up_to_all_of_them(kind):
    layer, x, weights = {number: gated() for number in range(NUM_EXPERTS)}, normal(5, HIDDEN), normal(5, 2)
    chosen = normal(5, NUM_EXPERTS).topk(2)[1]
    expected = AllExperts(layer, NUM_EXPERTS)(x, weights, chosen)
    parts = [{number: layer[number] for number in own} for own in (range(2), range(2, NUM_EXPERTS))]

    make = mix_of if kind is GroupedExperts else AllExperts
    mixes = [make(part, NUM_EXPERTS) for part in parts]

    assert all(isinstance(mix, kind) for mix in mixes)
    torch.testing.assert_close(sum(mix(x, weights, chosen) for mix in mixes), expected, rtol=1e-4, atol=1e-3)


def test_weights_of_experts_are_held_once():
    layer = {number: gated() for number in range(NUM_EXPERTS)}
    weights = [each.into.weight for each in layer.values()]
    values = torch.stack(weights)

    mix_of(layer, NUM_EXPERTS)

    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    assert weights[0].untyped_storage().nbytes() == values.nbytes
    assert torch.equal(torch.stack(weights), values)


def test_experts_whose_weights_are_not_floats_compute_all_tokens():
    layer = {number: gated() for number in range(NUM_EXPERTS)}
    layer[2].down = lambda x: x @ torch.zeros(SIZE, HIDDEN)

    assert isinstance(mix_of(layer, NUM_EXPERTS), AllExperts)


def test_quantized_experts_whose_scales_have_different_types_are_stacked():
    """A checkpoint's float32 scales are stored in bfloat16 where that is exact, as for an expert that was never trained."""
    values = torch.arange(2 * SIZE * HIDDEN).view(2, SIZE, HIDDEN).to(torch.int8)
    scales = torch.rand(1, SIZE), torch.ones(1, SIZE, dtype=torch.bfloat16)

    stack = stacked([ExpertWeights(each, None, scale, group=HIDDEN) for each, scale in zip(values, scales, strict=True)])

    for expert, scale in enumerate(scales):
        torch.testing.assert_close(stack.dequantized(expert), values[expert] * scale.float().T)


def test_an_expert_that_overflows_changes_only_tokens_that_chose_it():
    """Experts compute all tokens if their weights are not floats, also tokens that they would never get."""
    experts_of_layer = {0: lambda x: x + 1, 1: lambda x: x * torch.inf}
    x, weights, chosen = torch.ones(2, HIDDEN), torch.ones(2, 1), torch.tensor([[0], [1]])

    mixed = AllExperts(experts_of_layer, 2)(x, weights, chosen)

    assert mixed[0].tolist() == [2] * HIDDEN
    assert mixed[1].isinf().all()
