"""A layer of Mamba gives the same bits alone, in a batch, in chunks of any size and behind drafts."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.kv_cache.state_rows import DraftedStates, Segment, StateChunk, StateRows, _DraftedRow
from tetrad.worker_svc.layers.norm import UnitNorm
from tetrad.worker_svc.layers.states.convolution import CausalConvolution
from tetrad.worker_svc.layers.states.layer import StateLayer
from tetrad.worker_svc.layers.states.mamba1 import Mamba1Recurrence, SelectionNorms, SelectiveInputs
from tetrad.worker_svc.model_facts.states import Mamba1

HIDDEN, NUM_TOKENS = 24, 90
SIZES = Mamba1(size=40, state_dim=8, step_rank=3, kernel=4)
NO_ROWS = torch.zeros(0, dtype=torch.int64)


class RowByRow:
    """A product whose bits do not depend on the number of rows."""

    def __init__(self, outputs: int, inputs: int) -> None:
        self._weight = torch.randn(outputs, inputs) * 0.3

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([(self._weight * row).sum(1) for row in x])


@pytest.fixture(scope="module")
def layer() -> StateLayer:
    torch.manual_seed(1)
    sizes = SIZES
    convolution = CausalConvolution(torch.randn(sizes.size, sizes.kernel), torch.randn(sizes.size))
    inputs = SelectiveInputs(
        sizes,
        RowByRow(2 * sizes.size, HIDDEN),
        convolution,
        selection=RowByRow(sizes.step_rank + 2 * sizes.state_dim, sizes.size),
        steps=RowByRow(sizes.size, sizes.step_rank),
        step_bias=torch.randn(sizes.size),
        norms=SelectionNorms(*(UnitNorm(size, 1e-5) for size in (sizes.step_rank, sizes.state_dim, sizes.state_dim))),
    )
    decay = -torch.rand(sizes.state_dim, sizes.size) - 0.1
    recurrence = Mamba1Recurrence(sizes, convolution, decay=decay, skip=torch.randn(sizes.size))
    return StateLayer(inputs, recurrence, RowByRow(HIDDEN, sizes.size))


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(NUM_TOKENS, HIDDEN)


def caches() -> torch.Tensor:
    return torch.full((8, SIZES.state_size), 7.0)  # blocks have what others left in them


def chunk(start: int, stop: int, *, block: int = 1, first: int = 0, drafts: int = 0) -> StateChunk:
    """Return tokens start..stop of a sequence as a chunk at row `first` of a step; the last ones are drafts."""
    known = Segment(first, first + stop - start - drafts, block)
    end = first + stop - start
    return StateChunk(block if start else None, (known,), slice(end - drafts, end) if drafts else None)


def chunked(layer: StateLayer, x: torch.Tensor, sizes: list[int], cache: torch.Tensor) -> torch.Tensor:
    found, start = [], 0
    for size in sizes:
        rows = StateRows(NO_ROWS, NO_ROWS, NO_ROWS, (chunk(start, start + size),))
        found.append(layer(x[start : start + size], cache, rows))
        start += size
    return torch.cat(found)


@pytest.fixture(scope="module")
def whole(layer, x) -> tuple[torch.Tensor, torch.Tensor]:
    cache = caches()
    return chunked(layer, x, [NUM_TOKENS], cache), cache[1]


@pytest.mark.parametrize("sizes", [[45, 45], [1, 2, 3, 33, 51], [32, 32, 26], [1] * NUM_TOKENS])
def test_chunks_of_any_size(layer, x, whole, sizes):
    cache = caches()

    found = chunked(layer, x, sizes, cache)

    assert torch.equal(found, whole[0])
    assert torch.equal(cache[1], whole[1])


def test_decodes_in_a_batch(layer, x, whole):
    """Three sequences begin at different tokens; each step has one token of each, and a chunk of a fourth one behind them."""
    cache, blocks = caches(), torch.tensor([2, 3, 4])
    others = torch.randn(NUM_TOKENS, HIDDEN)

    for token in range(NUM_TOKENS):
        batch = torch.stack([others[token], x[token], others[-token]])
        begun = torch.arange(3) if token == 0 else NO_ROWS
        rows = StateRows(blocks, blocks, begun, (chunk(token * 2, token * 2 + 2, block=5, first=3),))
        found = layer(torch.cat([batch, others[:2]]), cache, rows)

        assert torch.equal(found[1], whole[0][token])

    assert torch.equal(cache[3], whole[1])


def test_segments_of_a_chunk_leave_the_states_of_their_ends(layer, x, whole):
    cache = caches()
    segments = (Segment(0, 30, 2), Segment(30, 64, 3), Segment(64, NUM_TOKENS, 4))

    found = layer(x, cache, StateRows(NO_ROWS, NO_ROWS, NO_ROWS, (StateChunk(None, segments),)))

    assert torch.equal(found, whole[0])
    assert torch.equal(cache[4], whole[1])
    middle = caches()
    chunked(layer, x, [64], middle)
    assert torch.equal(cache[3], middle[1])


@pytest.mark.parametrize("num_accepted", [0, 2, 4])
@pytest.mark.parametrize("on_device", [False, True])
def test_accepted_drafts_change_a_state_as_decodes_do(layer, x, whole, num_accepted, on_device):
    cache, wanted = caches(), caches()
    chunked(layer, x, [60], cache)
    chunked(layer, x, [61 + num_accepted], wanted)
    drafted = DraftedStates([_DraftedRow(slot=0, num_known=61, target=1)])
    tokens = torch.cat([x[60 : 61 + num_accepted], torch.randn(4 - num_accepted, HIDDEN)])

    found = layer(tokens, cache, StateRows(NO_ROWS, NO_ROWS, NO_ROWS, (chunk(60, 65, drafts=4),), drafted))
    if on_device:
        drafted.settle_on_device(torch.tensor([1]), torch.arange(4)[None] < num_accepted)
    else:
        drafted.settle([61 + num_accepted + 1])

    assert torch.equal(found[: 1 + num_accepted], whole[0][60 : 61 + num_accepted])
    assert torch.equal(cache[1], wanted[1])


def test_outputs_are_those_of_the_formula(layer, x, whole):
    """The state of each channel decays by its time step, token by token, as in the paper's equation 2."""
    inputs, recurrence = layer._inputs, layer._recurrence
    projected = inputs._projection(x)
    mixed, gate = projected.chunk(2, 1)
    kernel = inputs._convolution._weight.T[:, None]
    mixed = F.conv1d(F.pad(mixed.T, (SIZES.kernel - 1, 0)), kernel, inputs._convolution._bias, groups=SIZES.size).T
    mixed = F.silu(mixed)
    steps, into, out_of = inputs._selection(mixed).split([SIZES.step_rank, SIZES.state_dim, SIZES.state_dim], 1)
    steps, into, out_of = (each / (each.square().mean(1, keepdim=True) + 1e-5).sqrt() for each in (steps, into, out_of))
    steps = F.softplus(inputs._steps(steps) + inputs._step_bias)
    state, found = torch.zeros(SIZES.size, SIZES.state_dim), []
    for token in range(NUM_TOKENS):
        state = state * (steps[token, :, None] * recurrence._decay.T).exp()
        state = state + steps[token, :, None] * into[token] * mixed[token, :, None]
        found.append(state @ out_of[token] + recurrence._skip * mixed[token])

    torch.testing.assert_close(layer._output(torch.stack(found) * F.silu(gate)), whole[0], atol=1e-4, rtol=1e-4)
