"""Drafts on the CUDA device, interpreted: right and wrong drafts give the tokens of a run without drafts."""

from collections.abc import Iterable
from itertools import product
from random import Random

import numpy as np
import pytest

from tests.grids import grid
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import layout_of, record_graphs
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.sampler.custom_processors import MODULE
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import DraftTokens, GrammarRows, SamplingSpec
from tetrad.worker_svc.cuda import verification
from tetrad.worker_svc.cuda.graphs import PassGraphs
from tetrad.worker_svc.cuda.verification import Places
from tetrad.worker_svc.sampler.custom_classes import import_classes

NUM_TOKENS = 6
LAYOUT = KvLayout(num_blocks=60, block_size=16, max_model_len=64, max_num_seqs=10, max_num_batched_tokens=256)
FEW = KvLayout(num_blocks=20, block_size=16, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64)
SAMPLINGS = {
    "greedy": SamplingSpec(temperature=0.0),
    "drawn": SamplingSpec(seed=5),
    "truncated": SamplingSpec(seed=6, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
    "with penalties": SamplingSpec(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.3),
    "without bad words": SamplingSpec(seed=7, top_k=5, bad_words=((3,), (9, 11), (5, 6, 7))),
    "with min_tokens": SamplingSpec(temperature=0.0, min_tokens=4, stop_token_ids=tuple(range(100, 200))),
    "with biases": SamplingSpec(seed=8, logit_bias={7: 3.0, 8: -9.0}, allowed_token_ids=tuple(range(60)), num_logprobs=3),
    "with logprobs": SamplingSpec(temperature=0.0, num_logprobs=1, frequency_penalty=1.9),
    "that stop thinking": SamplingSpec(seed=10, thinking_token_budget=2, thinking_end_ids=(50, 51, 52)),
    "with a custom processor": SamplingSpec(seed=11, extra_args={"hash": 3.0}),
}
EVEN, ODD, NOTHING = (np.full(10, word, np.uint32) for word in (0x55555555, 0xAAAAAAAA, 0))


KINDS = list(SAMPLINGS)
DRAWN, PENALISED, BIASED, LOGPROBS = (KINDS.index(kind) for kind in ("drawn", "with penalties", "with biases", "with logprobs"))
ALL = range(len(KINDS))
STATEFUL, MOST = (0, DRAWN, PENALISED), 9
"""Requests of a model with states, and the number of their tokens."""


def prompts_of(model, handles: Iterable[int] = ALL, layout: KvLayout = LAYOUT) -> Driver:
    """Return a driver with a request of each of these kinds, whose prompts are computed."""
    driver = Driver(model.make_runner(layout), layout)
    for handle in handles:
        driver.add(handle, range(20 + handle, 24 + 2 * handle), SAMPLINGS[KINDS[handle]])
    driver.step({handle: driver.remaining(handle) for handle in handles})
    return driver


@pytest.fixture(scope="module")
def tiny_cuda(tiny_path, load_cuda):
    return load_cuda(tiny_path, logits_processors=import_classes([f"{MODULE}:Hash"]))


@pytest.fixture(scope="module")
def plain(tiny_cuda) -> Driver:
    """What is generated without drafts."""
    driver = prompts_of(tiny_cuda)
    driver.generate(NUM_TOKENS)
    return driver


def outputs(driver: Driver) -> dict[int, list[int]]:
    return {handle: request.output[:NUM_TOKENS] for handle, request in driver.requests.items()}


def test_tokens_and_logprobs_are_those_of_a_run_without_drafts(tiny_cuda, plain):
    driver, expected, random = prompts_of(tiny_cuda), outputs(plain), Random(1)

    while running := [handle for handle, each in driver.requests.items() if len(each.output) < NUM_TOKENS]:
        drafts = {}
        for handle in running:
            begin = len(driver.requests[handle].output)
            right = expected[handle][begin : min(begin + random.randint(0, 4), NUM_TOKENS - 1)]
            drafts[handle] = [token if random.random() < 0.8 else random.randrange(320) for token in right]
        driver.verify(drafts)

    assert outputs(driver) == expected
    for handle, request in driver.requests.items():
        assert len(request.logprobs) == len(plain.requests[handle].logprobs)
        for found, known in zip(request.logprobs, plain.requests[handle].logprobs, strict=True):
            assert found[0].tolist() == known[0].tolist()
            np.testing.assert_allclose(found[1], known[1], atol=1e-4)


def test_rejected_drafts_leave_nothing_behind(tiny_cuda, plain):
    """Neither in what is counted for penalties, nor in keys and values."""
    driver = prompts_of(tiny_cuda, (DRAWN, PENALISED))

    driver.verify({handle: [1, 2, 3] for handle in driver.requests})
    found = driver.generate(4)

    assert found == {handle: plain.requests[handle].output[:4] for handle in found}


def test_drafts_are_verified_beside_a_chunk_of_a_prompt(tiny_cuda, plain):
    driver, expected = prompts_of(tiny_cuda, (DRAWN,)), outputs(plain)
    driver.add(PENALISED, plain.requests[PENALISED].prompt, SAMPLINGS["with penalties"])
    right = expected[DRAWN][1:3]

    drafts = DraftTokens(np.array([DRAWN]), np.array([3]), np.array([*right, 0]))
    driver.step({DRAWN: 4, PENALISED: 4}, drafts=drafts)
    driver.requests[DRAWN].num_tokens = driver.requests[DRAWN].num_computed = len(plain.requests[DRAWN].prompt) + 3
    driver.requests[DRAWN].num_tokens += 1
    driver.step({DRAWN: 1, PENALISED: driver.remaining(PENALISED)})

    assert driver.requests[DRAWN].output == expected[DRAWN][:5]
    assert driver.requests[PENALISED].output == expected[PENALISED][:1]


def test_a_step_that_verifies_alone_runs_on_a_graph_of_single_tokens(tiny_cuda, plain, monkeypatch):
    driver, expected, rows = prompts_of(tiny_cuda, (DRAWN, PENALISED), FEW), outputs(plain), []
    record_graphs(driver.runner)
    run = PassGraphs.run
    monkeypatch.setattr(PassGraphs, "run", lambda graphs, table, *rest: rows.append(len(table)) or run(graphs, table, *rest))

    driver.verify({DRAWN: expected[DRAWN][1:4], PENALISED: [expected[PENALISED][1], 0]})
    driver.verify({DRAWN: [], PENALISED: expected[PENALISED][3:5]})

    assert rows == [7, 4]
    assert driver.requests[DRAWN].output == expected[DRAWN][:6]
    assert driver.requests[PENALISED].output == expected[PENALISED][:6]


def test_each_place_has_its_own_mask(tiny_cuda):
    masks = GrammarRows(np.array([1, 1, 1, 4, 4]), np.stack([EVEN, ODD, EVEN, EVEN, ODD]))
    found: dict[int, list[int]] = {1: [], 4: []}
    for place in range(2):  # what is sampled in one place is the draft of the next run
        drafts = {1: found[1] + [1] * (2 - place), 4: found[4][:1] or [1]}
        result = prompts_of(tiny_cuda, (1, 4)).verify(drafts, grammar=masks)
        pairs = list(zip(result.handles.tolist(), result.token_ids.tolist(), strict=True))
        found = {handle: [token for owner, token in pairs if owner == handle] for handle in found}

    assert all(token % 2 == place % 2 for row in found.values() for place, token in enumerate(row))
    assert len(found[1]) == len(found[4]) == 2


def test_a_request_that_fails_behind_a_draft_keeps_the_tokens_before_it(tiny_cuda, plain):
    """Nothing is left to sample in the second place; in the next step that is the first one, and the request fails."""
    driver, right = prompts_of(tiny_cuda, (0, LOGPROBS)), plain.requests[LOGPROBS].output[1]
    everything = np.full(10, 0xFFFFFFFF, np.uint32)

    masks = GrammarRows(np.array([LOGPROBS, LOGPROBS]), np.stack([everything, NOTHING]))
    result = driver.verify({LOGPROBS: [right], 0: []}, grammar=masks)

    assert sorted(zip(result.handles.tolist(), result.token_ids.tolist(), strict=True)) == [
        (0, plain.requests[0].output[1]),
        (LOGPROBS, right),
    ]
    assert len(driver.requests[LOGPROBS].logprobs) == 2
    nothing = GrammarRows(np.array([LOGPROBS]), NOTHING[None])
    failing = driver.runner.execute(driver.plan({LOGPROBS: 1, 0: 1}, grammar=nothing)).wait()
    assert [handle for handle, _ in failing.failures] == [LOGPROBS]
    assert failing.handles.tolist() == [0]


def test_layers_without_a_kernel_verify_drafts(tmp_path, load_cuda):
    save_family(tmp_path, "deepseek_v3", kv_lora_rank=272)
    model = load_cuda(tmp_path)
    expected = prompts_of(model, (DRAWN, PENALISED)).generate(5)
    driver = prompts_of(model, (DRAWN, PENALISED))

    driver.verify({DRAWN: expected[DRAWN][1:4], PENALISED: [expected[PENALISED][1], 0]})

    assert driver.requests[DRAWN].output == expected[DRAWN]
    assert driver.requests[PENALISED].output == expected[PENALISED][:3]


FAMILIES = ("lfm2", "jamba", "mamba", "mamba2", "granite_hybrid", "qwen3_next", "falcon_h1", "nemotron_h")
SHORT = {"lfm2", "jamba", "mamba", "mamba2", "qwen3_next", "falcon_h1"}
"""One of each kind of state, alone or beside attention."""


@pytest.mark.parametrize(
    ("family", "dtype"),
    grid(
        [*product(FAMILIES, ["float32"]), *product(["lfm2", "mamba", "qwen3_next"], ["float16"])],
        lambda family, _: family in SHORT,
    ),
)
def test_states_contain_no_rejected_draft(family, dtype, tmp_path, load_cuda):
    """Right drafts, wrong ones, and right ones before a wrong one, beside rows without drafts and a chunk of a prompt."""
    save_family(tmp_path, family)
    model, random = load_cuda(tmp_path, dtype=dtype), Random(2)
    layout = layout_of(model, LAYOUT)
    expected = prompts_of(model, STATEFUL, layout).generate(MOST)
    driver = prompts_of(model, STATEFUL, layout)
    driver.add(BIASED, range(60, 80), SAMPLINGS["with biases"])

    num_steps = 0
    while running := {handle: driver.requests[handle] for handle in STATEFUL if len(driver.requests[handle].output) < MOST}:
        drafts = {}
        for handle, request in running.items():
            room = min(-request.num_tokens % layout.block_size, MOST - 1 - len(request.output), random.randint(0, 3))
            right = expected[handle][len(request.output) :][: max(room, 0)]
            drafts[handle] = [token if random.random() < 0.8 else random.randrange(320) for token in right]
        driver.verify(drafts | ({BIASED: []} if num_steps == 1 else {}))
        num_steps += 1

    assert {handle: driver.requests[handle].output for handle in STATEFUL} == expected
    assert num_steps < 0.9 * MOST


def test_drafts_beyond_the_block_of_a_state_are_refused(tmp_path, load_cuda):
    save_family(tmp_path, "lfm2")
    model = load_cuda(tmp_path)
    driver = prompts_of(model, (0,), layout_of(model, LAYOUT))
    most = -driver.requests[0].num_tokens % driver.layout.block_size

    with pytest.raises(InvalidRequest, match=f"{most + 1} drafts .* beyond the block"):
        driver.verify({0: [5] * (most + 1)})


def test_many_places_are_sampled_in_parts(tiny_cuda, plain, monkeypatch):
    monkeypatch.setattr(verification, "_ROWS_AT_ONCE", 4)
    driver, expected = prompts_of(tiny_cuda, (DRAWN, PENALISED, BIASED)), outputs(plain)

    driver.verify({handle: expected[handle][1:4] for handle in driver.requests})

    assert {handle: each.output for handle, each in driver.requests.items()} == {
        handle: expected[handle][:5] for handle in driver.requests
    }


def test_parts_are_whole_requests(monkeypatch):
    monkeypatch.setattr(verification, "_ROWS_AT_ONCE", 4)
    counts = np.array([2, 2, 3, 6, 1])
    first = np.cumsum(counts) - counts
    nothing = np.zeros(14, np.int64)

    places = Places(nothing, nothing, nothing, nothing, first)

    assert [(piece.start, piece.stop) for piece in places.pieces()] == [(0, 4), (4, 7), (7, 13), (13, 14)]
