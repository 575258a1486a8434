"""Right and wrong drafts on the worker give the tokens of a run without drafts, on the CPU and on the simulated device."""

from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import types_pb2, worker_pb2
from tetrad.worker_svc.api.wire import capabilities_of, decode_plan, encode_result
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import GrammarRows, SamplingSpec
from tetrad.worker_svc.core.result import ModelRunnerOutput
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.devices.sim import CostModel, SimRunner

LAYOUT = KvLayout(num_blocks=400, block_size=16, max_model_len=1024, max_num_seqs=64, max_num_batched_tokens=2048)
NUM_TOKENS = 24
SAMPLINGS = {
    "greedy": SamplingSpec(temperature=0.0),
    "drawn": SamplingSpec(seed=5),
    "truncated": SamplingSpec(seed=6, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
    "with penalties": SamplingSpec(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.3),
    "without bad words": SamplingSpec(seed=7, top_k=5, bad_words=((3,), (9, 11), (5, 6, 7))),
    "with min_tokens": SamplingSpec(temperature=0.0, min_tokens=9, stop_token_ids=tuple(range(100, 200))),
    "with biases": SamplingSpec(seed=8, logit_bias={7: 3.0, 8: -9.0}, allowed_token_ids=tuple(range(60))),
    "with logprobs": SamplingSpec(seed=9, num_logprobs=3),
    "with more logprobs": SamplingSpec(temperature=0.0, num_logprobs=5),
    "that stop thinking": SamplingSpec(seed=10, thinking_token_budget=6, thinking_end_ids=(50, 51, 52)),
}


@pytest.fixture(scope="module", params=["native", "torch", "sim"])
def model(request, tiny_llama):
    path = tiny_llama[0]
    if request.param == "sim":

        class Sim:
            def make_runner(self, layout):
                return SimRunner(320, layout, CostModel())

        return Sim()
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels=request.param))
    device.set_up()
    return device.load_model(LoadRequest(str(path), path), lambda *_: None)


@pytest.fixture
def make_full_driver(model, make_driver):
    """Return a maker of drivers with one request of each kind, whose prompts are computed."""

    def make():
        driver = make_driver(model, LAYOUT)
        for handle, sampling in enumerate(SAMPLINGS.values()):
            driver.add(handle, range(20 + handle, 40 + 2 * handle), sampling)
        driver.step({handle: driver.remaining(handle) for handle in driver.requests})
        return driver

    return make


@pytest.mark.parametrize("skill", [0.0, 0.7, 1.0])
def test_tokens_and_logprobs_are_those_of_a_run_without_drafts(make_full_driver, skill):
    plain, drafting, random = make_full_driver(), make_full_driver(), Random(1)
    expected = plain.generate(NUM_TOKENS)
    num_steps = 0

    while running := [handle for handle, each in drafting.requests.items() if len(each.output) < NUM_TOKENS]:
        drafts = {}
        for handle in running:
            begin = len(drafting.requests[handle].output)
            right = expected[handle][begin : min(begin + random.randint(0, 5), NUM_TOKENS - 1)]
            drafts[handle] = [token if random.random() < skill else random.randrange(320) for token in right]
        drafting.verify(drafts)
        num_steps += 1

    assert {handle: each.output for handle, each in drafting.requests.items()} == expected
    for handle, request in drafting.requests.items():
        assert len(request.logprobs) == len(plain.requests[handle].logprobs)
        for found, known in zip(request.logprobs, plain.requests[handle].logprobs, strict=True):
            assert found[0].tolist() == known[0].tolist()
            assert np.allclose(found[1], known[1], atol=1e-4)
    assert (num_steps < 0.6 * NUM_TOKENS) == (skill == 1.0)


def test_each_place_has_its_own_mask(make_full_driver):
    """Even ids in the first place, odd ones in the second, and so on; requests without rows are not constrained."""
    driver = make_full_driver()
    even, odd = np.full(10, 0x55555555, np.uint32), np.full(10, 0xAAAAAAAA, np.uint32)
    masks = GrammarRows(np.array([0, 0, 0, 1, 1]), np.stack([even, odd, even, even, odd]))
    found = {0: [], 1: []}
    for place in range(2):  # what is sampled in one place is the draft of the next run
        fresh = make_full_driver()
        result = fresh.verify({0: found[0] + [1] * (2 - place), 1: found[1][:1] or [1]}, grammar=masks)
        rows = {handle: [t for h, t in zip(result.handles, result.token_ids, strict=True) if h == handle] for handle in (0, 1)}
        found = {handle: [int(token) for token in row] for handle, row in rows.items()}

    assert all(token % 2 == place % 2 for row in found.values() for place, token in enumerate(row))
    assert len(found[0]) == len(found[1]) == 2
    assert driver.requests.keys() == set(range(len(SAMPLINGS)))


def test_rejected_drafts_leave_nothing_behind(make_full_driver):
    plain, drafting = make_full_driver(), make_full_driver()
    drafting.verify({handle: [1, 2, 3, 4, 5, 6, 7, 8] for handle in drafting.requests})

    assert drafting.generate(NUM_TOKENS) == plain.generate(NUM_TOKENS)


@pytest.mark.parametrize(
    ("drafts", "text"),
    [({0: [319, 320]}, "draft is not in the vocabulary of 320 tokens"), ({0: [1] * 1004}, "beyond max_model_len 1024")],
)
def test_drafts_that_cannot_be_computed_are_refused(make_full_driver, drafts, text):
    with pytest.raises(InvalidRequest, match=text):
        make_full_driver().verify(drafts)


def test_a_request_that_fails_behind_a_draft_keeps_the_tokens_before_it(tiny, make_driver):
    """Nothing is left to sample in the second place; in the next step that is the first one, and the request fails."""
    everything, nothing = np.full(10, 0xFFFFFFFF, np.uint32), np.zeros(10, np.uint32)
    plain, driver = make_driver(tiny), make_driver(tiny)
    for each in (plain, driver):
        each.add(0, range(20), SamplingSpec(seed=3, num_logprobs=2))
        each.step({0: 20})
    [right] = plain.verify({0: []}).token_ids.tolist()

    result = driver.verify({0: [right]}, grammar=GrammarRows(np.array([0, 0]), np.stack([everything, nothing])))

    assert (result.handles.tolist(), result.token_ids.tolist()) == ([0], [right])
    assert len(driver.requests[0].logprobs) == 2
    with pytest.raises(AssertionError, match="Nothing is left to sample"):
        driver.verify({0: []}, grammar=GrammarRows(np.array([0]), nothing[None]))


def test_a_simulated_failure_comes_where_it_does_without_drafts(make_driver):
    class Sim:
        def make_runner(self, layout):
            return SimRunner(320, layout, CostModel(), fail_token_id=9)

    driver = make_driver(Sim(), LAYOUT)
    request = driver.add(0, [1, 9], SamplingSpec(seed=4))
    driver.step({0: 2})
    right = driver.runner.token_ids(np.full(4, 4), np.arange(3, 7)).tolist()

    result = driver.verify({0: right})

    assert len(request.output) == 3
    assert result.failures == []
    with pytest.raises(AssertionError, match="sim-fail-token-id"):
        driver.verify({0: []})


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_plan_says_which_drafts_belong_to_whom():
    columns = worker_pb2.DraftTokens(handles=pack_u32([4, 2]), num_tokens=pack_u32([1, 2]), token_ids=pack_u32([7, 8, 9]))

    drafts = decode_plan(worker_pb2.SchedulerOutput(draft_tokens=columns)).drafts

    assert [column.tolist() for column in (drafts.handles, drafts.num_tokens, drafts.token_ids)] == [[4, 2], [1, 2], [7, 8, 9]]


def test_columns_of_drafts_that_disagree_are_refused():
    columns = worker_pb2.DraftTokens(handles=pack_u32([4, 2]), num_tokens=pack_u32([1, 2]), token_ids=pack_u32([7, 8]))

    with pytest.raises(InvalidRequest, match="Columns of draft_tokens disagree: 2 requests, 2 numbers of drafts, 2 drafts"):
        decode_plan(worker_pb2.SchedulerOutput(draft_tokens=columns))


def test_the_tokens_of_a_request_stand_together_in_the_message():
    """Place by place is how they were sampled."""
    handles, token_ids = np.array([5, 3, 4, 5, 3, 5], np.uint32), np.array([1, 2, 3, 4, 5, 6], np.uint32)

    message = encode_result(ModelRunnerOutput(1, handles, token_ids, has_drafts=True))

    assert unpack_u32(message.handles) == [3, 4, 5]
    assert unpack_u32(message.num_tokens) == [2, 1, 3]
    assert unpack_u32(message.token_ids) == [2, 5, 3, 1, 4, 6]


def test_devices_announce_whether_they_verify_drafts():
    others = {"joins_groups": False, "takes_embeddings": False, "keeps_states": False, "media": None, "shares_blocks": False}

    assert types_pb2.CAPABILITY_DRAFT_TOKENS in capabilities_of(SimpleNamespace(verifies_drafts=True, **others))
    assert types_pb2.CAPABILITY_DRAFT_TOKENS not in capabilities_of(SimpleNamespace(verifies_drafts=False, **others))
