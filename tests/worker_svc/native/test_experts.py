"""Experts of the native kernels: the choice against the torch routers, products against the same matrices one by one."""

from dataclasses import dataclass, replace

import gguf
import numpy as np
import pytest
import torch

from tests.worker_svc.native.native_programs import NO_HEADS, RUNNABLE, product, team_of
from tests.worker_svc.native.test_products import activations, drawn, quantized
from tetrad.worker_svc.layers.activation import gate_of
from tetrad.worker_svc.layers.linear import PlainLinear
from tetrad.worker_svc.layers.routers import Router
from tetrad.worker_svc.model_facts.config import Experts
from tetrad.worker_svc.native.operands import Epilogue, Shared
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.weights import NativeMatrix, pack_float, pack_gguf, pack_int8

Kind = gguf.GGMLQuantizationType
HIDDEN, SIZE, NUM = 64, 40, 12
PLAIN = Experts(NUM, 3, SIZE)
ROUTERS = {
    "softmax": PLAIN,
    "softmax as it is": replace(PLAIN, is_renormalized=False, scale=1.5),
    "softmax of the chosen": replace(PLAIN, router="softmax_chosen", is_renormalized=False),
    "softmax in groups": replace(PLAIN, router="grouped_softmax", num_groups=4, num_chosen_groups=2, is_renormalized=False),
    "sigmoids": replace(PLAIN, router="grouped_sigmoid", scale=2.5),
    "sigmoids in groups": replace(PLAIN, router="grouped_sigmoid", num_groups=3, num_chosen_groups=2),
}
"""Every way to choose three of twelve experts."""


@pytest.fixture(scope="module", params=RUNNABLE)
def team(request):
    return team_of(request.param)


@dataclass
class Mixture:
    """A program of one mixture of experts over given scores; `counts` adds up its choices."""

    team: object
    experts: Experts
    inner: list[NativeMatrix]
    down: list[NativeMatrix]
    correction: torch.Tensor | None = None
    biases: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    shared_gate: bool | None = None

    def __post_init__(self) -> None:
        builder, experts = ProgramBuilder(self.team), self.experts
        self.counts = np.zeros(experts.num_experts, np.int64)
        self.scores, self.source, self.target = (
            builder.buffer(experts.num_experts),
            builder.buffer(HIDDEN),
            builder.buffer(HIDDEN),
        )
        self.shared, self.gate = builder.buffer(HIDDEN), builder.buffer(1)
        gated = builder.buffer(experts.num_chosen * SIZE)
        outputs = builder.buffer(experts.num_chosen * HIDDEN)
        routing = builder.route(experts, self.correction, self.counts, self.scores)
        inner_biases, biases = self.biases
        builder.experts(
            routing,
            self.inner,
            inner_biases,
            self.source,
            gated,
            epilogue=Epilogue.GATE,
            clamp=experts.clamp,
            activation="silu",
        )
        builder.experts(routing, self.down, biases, gated, outputs, is_by_place=True)
        shared = None if self.shared_gate is None else Shared(self.shared, self.gate if self.shared_gate else None)
        builder.mix(routing, outputs, self.target, shared=shared, added=0.5)
        self.program = builder.build("mixture", NO_HEADS)

    def run(self, scores: torch.Tensor, x: torch.Tensor, target: torch.Tensor, **shared: torch.Tensor) -> torch.Tensor:
        out = target.clone()
        given = {self.scores: scores.clone(), self.source: x.contiguous(), self.target: out}
        given |= {getattr(self, name): values.contiguous() for name, values in shared.items()}
        self.program.run(len(x), given=given)
        return out


def mixture(team, experts: Experts = PLAIN, **options: object) -> tuple[Mixture, torch.Tensor, torch.Tensor]:
    """Return a mixture of floats with its weights: [E, 2 * SIZE, HIDDEN] and [E, HIDDEN, SIZE]."""
    inner, down = drawn(NUM, 2 * SIZE, HIDDEN, seed=8) / 8, drawn(NUM, HIDDEN, SIZE, seed=9) / 6
    packed = [pack_float(team, each, paired=True) for each in inner], [pack_float(team, each) for each in down]
    return Mixture(team, experts, *packed, **options), inner, down


def chosen_of(experts: Experts, scores: torch.Tensor, correction: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return torch's weights and experts [T, C]."""
    return Router(PlainLinear(torch.eye(NUM), None), correction, experts)(scores)


def expected(experts, inner, down, choice, x, biases=(None, None)) -> torch.Tensor:
    """Return the weighted sum of the chosen experts in float64."""
    out = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    first, second = (torch.zeros(NUM, 1) if each is None else each for each in biases)
    for token, (weights, chosen) in enumerate(zip(*choice, strict=True)):
        for weight, expert in zip(weights, chosen.tolist(), strict=True):
            gate, up = (inner[expert].double() @ x[token].double() + first[expert]).chunk(2)
            out[token] += weight * (down[expert].double() @ gate_of("silu", experts.clamp)(gate, up) + second[expert])
    return out


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("with_correction", [False, True])
@pytest.mark.parametrize("num_rows", [1, 7, 150])
def test_experts_are_those_of_the_torch_router(team, name, with_correction, num_rows):
    experts = ROUTERS[name]
    correction = drawn(NUM, seed=3) / 4 if with_correction and experts.router == "grouped_sigmoid" else None
    model, inner, down = mixture(team, experts, correction=correction)
    scores, x, before = drawn(num_rows, NUM, seed=1), drawn(num_rows, HIDDEN, seed=2), drawn(num_rows, HIDDEN, seed=5)

    found = model.run(scores, x, before)

    choice = chosen_of(experts, scores, correction)
    wanted = before.double() + 0.5 * expected(experts, inner, down, choice, x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(model.counts, choice[1].flatten().bincount(minlength=NUM))


def test_biases_and_the_clamped_activation(team):
    experts = replace(PLAIN, clamp=0.7)
    biases = drawn(NUM, 2 * SIZE, seed=3), drawn(NUM, HIDDEN, seed=4)
    model, inner, down = mixture(team, experts, biases=biases)
    scores, x = drawn(9, NUM, seed=1), drawn(9, HIDDEN, seed=2)

    found = model.run(scores, x, torch.zeros(9, HIDDEN))

    wanted = 0.5 * expected(experts, inner, down, chosen_of(experts, scores, None), x, biases)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("with_gate", [False, True])
def test_a_shared_expert_is_added(team, with_gate):
    plain, sharing = mixture(team)[0], mixture(team, shared_gate=with_gate)[0]
    scores, x, nothing = drawn(5, NUM, seed=1), drawn(5, HIDDEN, seed=2), torch.zeros(5, HIDDEN)
    shared, gate = drawn(5, HIDDEN, seed=6), drawn(5, 1, seed=7)

    found = sharing.run(scores, x, nothing, shared=shared, gate=gate)

    wanted = plain.run(scores, x, nothing) + 0.5 * (gate.sigmoid() if with_gate else 1) * shared
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [None, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.Q8_0, Kind.MXFP4], ids=str)
def test_quantized_experts_are_products_of_their_matrices(team, kind):
    """Bit for bit: each expert alone computes its rows as the grouped product does."""
    builder, columns = ProgramBuilder(team), 512
    if kind is None:
        matrices = [pack_int8(team, drawn(24, columns, seed=expert)) for expert in range(NUM)]
    else:
        matrices = [pack_gguf(team, quantized(kind, 24, columns, seed=expert)) for expert in range(NUM)]
    counts = np.zeros(NUM, np.int64)
    scores, source, target, mixed = (builder.buffer(size) for size in (NUM, columns, 3 * 24, 24))
    routing = builder.route(replace(PLAIN, is_renormalized=False), None, counts, scores)
    builder.experts(routing, matrices, None, source, target)
    builder.mix(routing, target, mixed)
    program = builder.build("quantized", NO_HEADS)
    for num_rows in (1, 5, 200):
        x, given, out = activations(num_rows, columns, seed=num_rows), drawn(num_rows, NUM, seed=1), torch.zeros(num_rows, 24)

        program.run(num_rows, given={scores: given.clone(), source: x, mixed: out})

        each = torch.stack([product(team, matrix, x) for matrix in matrices], 1)  # [T, E, 24]
        weights, chosen = chosen_of(replace(PLAIN, is_renormalized=False), given, None)
        wanted = (each.gather(1, chosen[..., None].expand(-1, -1, 24)) * weights[..., None]).sum(1)
        np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5 * float(each.abs().max()))


def test_rows_have_the_same_bits_alone_in_a_batch_and_on_any_team():
    alone, team = mixture(team_of(RUNNABLE[0]))[0], mixture(team_of(RUNNABLE[0], 3))[0]
    scores, x, before = drawn(130, NUM, seed=1), drawn(130, HIDDEN, seed=2), drawn(130, HIDDEN, seed=5)
    wanted = torch.cat([alone.run(*(rows[i : i + 1] for rows in (scores, x, before))) for i in range(130)])

    for _ in range(20):
        np.testing.assert_array_equal(team.run(scores, x, before), wanted)
    np.testing.assert_array_equal(alone.run(scores, x, before), wanted)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_score_that_is_no_number_reaches_its_row_alone(team, router):
    model = mixture(team, ROUTERS[router])[0]
    scores, x, before = drawn(9, NUM, seed=1), drawn(9, HIDDEN, seed=2), torch.zeros(9, HIDDEN)
    whole = model.run(scores, x, before)
    scores[4, 7] = torch.nan

    found = model.run(scores, x, before)

    assert not torch.isfinite(found[4]).any()
    np.testing.assert_array_equal(found[np.arange(9) != 4], whole[np.arange(9) != 4])


def test_a_thread_that_comes_late_finds_the_work_of_an_earlier_layer_done():
    """Layers differ in how many pieces their tokens make; a thread may walk through one while others are in a later one."""
    team, results = team_of(RUNNABLE[0], 4), []
    builder, experts = ProgramBuilder(team), replace(PLAIN, num_chosen=2)
    matrices = [pack_float(team, drawn(HIDDEN, HIDDEN, seed=expert) / 12) for expert in range(NUM)]
    x, out = builder.buffer(HIDDEN), builder.buffer(2 * HIDDEN)
    given = {x: drawn(6, HIDDEN)}
    for layer in range(12):
        scores = builder.buffer(NUM)
        given[scores] = drawn(6, NUM, seed=layer)
        if layer % 2:
            given[scores] += 100 * (torch.arange(NUM) < 2)  # all tokens choose the same two
        routing = builder.route(experts, None, np.zeros(NUM, np.int64), scores)
        builder.experts(routing, matrices, None, x, out)
        builder.mix(routing, out, x, added=0.1)
    program = builder.build("layers", NO_HEADS)
    for _ in range(300):
        rows = {buffer: values.clone() for buffer, values in given.items()}
        program.run(6, given=rows)
        results.append(rows[x])

    for found in results[1:]:
        np.testing.assert_array_equal(found, results[0])
