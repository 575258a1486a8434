"""A draft model on the CUDA device, interpreted: proposals without a wait between steps, from right keys and values."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import SMALL, TINY, record_drafts
from tests.worker_svc.runner.proposals import check_proposals, proposals_of
from tetrad.services.errors import FailedPrecondition, ModelError
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.result import Runner
from tetrad.worker_svc.cuda.graphs import PassGraphs

SAMPLINGS = [
    SamplingSpec(temperature=0.0),
    SamplingSpec(seed=5),
    SamplingSpec(seed=6, temperature=0.7, top_k=30, top_p=0.9),
]
FEW = replace(SMALL, max_num_seqs=2, max_num_batched_tokens=32)


def driver_of(model, runner: Runner | None = None, layout: KvLayout = SMALL) -> Driver:
    driver = Driver(runner or model.make_runner(layout), layout)
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 37 + 3 * handle), sampling)
    return driver


@pytest.fixture(scope="module")
def drafted(load_cuda, tiny_path):
    """A model that drafts for itself, so that every draft is right."""
    return load_cuda(tiny_path, draft_method="draft_model", draft_path=tiny_path, num_draft_tokens=3)


@pytest.fixture(scope="module")
def expected(tiny_cuda):
    """The tokens of a run without drafts."""
    return driver_of(tiny_cuda).generate(10)


def test_the_model_itself_proposes_its_own_next_tokens(drafted, expected):
    """Drawn ones, too: drafts have the noise of their places. A wrong draft takes the draft model's keys and values back."""
    assert check_proposals(driver_of(drafted), expected, num_tokens=6, num_drafts=3) > 12


def test_drafts_that_are_replayed_as_graphs_are_the_same(drafted, expected, monkeypatch):
    """Those of all requests in one graph, and the tokens that the draft model lacks in another."""
    layout = replace(SMALL, max_num_seqs=9)  # three tokens of each request
    runner = drafted.make_runner(layout)
    record_drafts(runner)
    drafting, replayed, replay = runner._drafts._drafting, Counter(), PassGraphs.run

    def run_graph(graphs: PassGraphs, rows: np.ndarray, num_rows: int, drawn: bool = False) -> None:
        replayed[graphs is drafting._drafts] += 1
        replay(graphs, rows, num_rows, drawn)

    monkeypatch.setattr(PassGraphs, "run", run_graph)

    assert check_proposals(driver_of(drafted, runner, layout), expected, num_tokens=6, num_drafts=3) > 12
    assert replayed[True] >= 2 <= replayed[False]


def test_a_step_that_rejects_drafts_and_proposes_none_takes_the_draft_model_back(drafted, expected):
    driver = driver_of(drafted)
    proposals = proposals_of(driver.step({handle: driver.remaining(handle) for handle in driver.requests}, num_spec_tokens=3))

    driver.verify({handle: [1 for _ in proposals.get(handle, [])] for handle in driver.requests})
    driver.verify({handle: [] for handle in driver.requests})
    proposals = proposals_of(driver.verify({handle: [] for handle in driver.requests}, num_spec_tokens=2))

    assert len(proposals) == len(SAMPLINGS)
    for handle, drafts in proposals.items():
        begin = len(driver.requests[handle].output)
        assert drafts == expected[handle][begin : begin + len(drafts)]


def test_a_prefix_that_the_target_alone_has_computed_is_computed_for_drafts(drafted, tiny_cuda):
    size = SMALL.block_size
    prompt = [*range(20, 20 + size), 7, 8]
    plain = Driver(tiny_cuda.make_runner(SMALL), SMALL)
    plain.add(1, prompt)
    expected = plain.generate(4)[1]
    driver = Driver(drafted.make_runner(SMALL), SMALL)
    driver.add(0, [*prompt[:size], 5])
    driver.step({0: size + 1})

    driver.add(1, prompt, shared=driver.requests[0].tables[0][:1], computed=size)
    result = driver.step({1: 2}, num_spec_tokens=3)

    assert proposals_of(result)[1] == expected[1:4]


def test_prompts_in_chunks_are_computed_by_both(drafted):
    driver = driver_of(drafted)
    first = driver.step(dict.fromkeys(driver.requests, 8), num_spec_tokens=2)
    second = driver.step({handle: driver.remaining(handle) for handle in driver.requests}, num_spec_tokens=2)

    assert first.proposals is None
    assert {handle: len(drafts) for handle, drafts in proposals_of(second).items()} == dict.fromkeys(driver.requests, 2)


def test_a_request_of_the_largest_length_gets_no_drafts(drafted, expected):
    """Its last token takes the last place of its slot; a draft after it would change the tokens of another request."""
    layout = replace(SMALL, max_model_len=20, max_num_seqs=2)
    driver = Driver(drafted.make_runner(layout), layout)
    driver.add(0, range(20))
    driver.add(1, range(20, 37))

    result = driver.step({0: 20, 1: 17}, num_spec_tokens=3)

    assert proposals_of(result) == {1: expected[0][1:3]}


def test_both_models_warm_up_sleep_and_wake(load_cuda, tiny_path):
    options = {"dtype": "float16", "enforce_eager": True, "draft_method": "draft_model", "draft_path": tiny_path}
    model, progress, proposals = load_cuda(tiny_path, **options), [], []
    for _ in range(2):
        driver = Driver(model.make_runner(FEW), FEW)
        driver.add(0, range(20, 37))
        proposals.append(proposals_of(driver.step({0: 17}, num_spec_tokens=2)))
        model.sleep()
        model.wake_up()

    model.make_runner(FEW).warm_up(lambda *done_of_all: progress.append(done_of_all))

    assert proposals[0] == proposals[1]
    assert progress[-1][0] == progress[-1][1] == len(progress)


def test_a_block_and_the_weights_take_the_memory_of_both_models(drafted, tiny_cuda):
    assert drafted.kv_groups(16)[0].block_size_bytes == 2 * tiny_cuda.kv_groups(16)[0].block_size_bytes
    assert drafted.info.weights_size_bytes == 2 * tiny_cuda.info.weights_size_bytes
    assert drafted.weights_on_device_bytes == 2 * tiny_cuda.weights_on_device_bytes


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"vocab_size": 300}, "same vocabulary size"),
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 16}, "windows or states"),
    ],
)
def test_a_draft_model_that_does_not_fit_is_refused(changes, problem, load_cuda, tiny_path, tmp_path):
    save_tiny(tmp_path, tiny_config("LlamaForCausalLM", **TINY) | changes)

    with pytest.raises(ModelError, match=problem):
        load_cuda(tiny_path, draft_method="draft_model", draft_path=tmp_path)


def test_sequences_longer_than_the_draft_model_takes_are_refused(load_cuda, tiny_path, tmp_path):
    save_tiny(tmp_path, tiny_config("LlamaForCausalLM", **TINY) | {"max_position_embeddings": 128})
    model = load_cuda(tiny_path, draft_method="draft_model", draft_path=tmp_path)

    with pytest.raises(FailedPrecondition, match="max_model_len 256 exceeds the 128 positions of the draft model"):
        model.make_runner(SMALL)
