"""A draft model on the worker: the tokens that it proposes, and the requests that get no drafts."""

from dataclasses import replace

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.worker_svc.runner.proposals import check_proposals, proposals_of
from tetrad.services.errors import FailedPrecondition, InvalidRequest, ModelError, Unsupported
from tetrad.v1 import worker_pb2
from tetrad.worker_svc.api.load_wire import decode_draft_method
from tetrad.worker_svc.api.wire import decode_plan, encode_result
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.devices.sim import SimDevice
from tetrad.worker_svc.worker.worker import Worker

LAYOUT = KvLayout(num_blocks=200, block_size=8, max_model_len=256, max_num_seqs=16, max_num_batched_tokens=64)
SAMPLINGS = [
    SamplingSpec(temperature=0.0),
    SamplingSpec(seed=5),
    SamplingSpec(seed=6, temperature=0.7, top_k=30, top_p=0.9),
    SamplingSpec(temperature=0.0, num_logprobs=2),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("target"))


@pytest.fixture
def load(cpu, target):
    """Return a loader of the target beside a draft model."""

    def load(drafter):
        return cpu.load_model(LoadRequest("target", target, draft_method="draft_model", draft_path=drafter), lambda *_: None)

    return load


@pytest.fixture
def driver(load, target, make_driver):
    """Drives a model that drafts for itself, so that every draft is right; all requests have computed their prompts."""
    driver = make_driver(load(target), LAYOUT)
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 36 + 3 * handle), sampling)
    return driver


def test_the_model_itself_proposes_its_own_next_tokens(driver, make_driver, load, target):
    """Drawn ones, too: drafts have the noise of their places. Block ends cut proposals: nobody gave blocks ahead here."""
    plain = make_driver(load(target), LAYOUT)
    for handle, sampling in enumerate(SAMPLINGS):
        plain.add(handle, range(20 + handle, 36 + 3 * handle), sampling)
    expected = plain.generate(36)

    assert check_proposals(driver, expected, num_tokens=24, num_drafts=4) > 60


def test_steps_without_proposals_are_caught_up_with(driver):
    """In parts, if the tokens are more than those of a step."""
    driver.generate(40)
    results = [driver.verify({handle: [] for handle in driver.requests}, num_spec_tokens=3) for _ in range(6)]

    assert [len(proposals_of(result)) for result in results][-1] == len(SAMPLINGS)
    assert len(proposals_of(results[0])) < len(SAMPLINGS)


@pytest.mark.parametrize("num_spec_tokens", [0, 4])
def test_drafts_after_a_cached_prefix_are_right_whether_the_draft_model_has_computed_it_or_not(
    load, target, make_driver, num_spec_tokens
):
    """Steps without proposals write a prefix for the target alone."""
    prompt, rest = list(range(20, 52)), list(range(100, 110))
    plain = make_driver(load(target), LAYOUT)
    plain.add(1, [*prompt, *rest])
    expected = plain.generate(6)[1]
    driver = make_driver(load(target), LAYOUT)
    driver.add(0, [*prompt, 5])
    driver.step({0: 33}, num_spec_tokens=num_spec_tokens)

    driver.add(1, [*prompt, *rest], shared=driver.requests[0].tables[0][:4], computed=32)
    result = driver.step({1: 10}, num_spec_tokens=4)

    assert proposals_of(result)[1] == expected[1:5]


@pytest.mark.parametrize("is_together", [True, False])
def test_drafts_after_a_prefix_that_the_draft_model_has_computed_in_part_are_right(load, target, make_driver, is_together):
    """The tokens that a request lacks leave no room in the draft model's step for the whole prompt of a new one."""
    prompt, rest = list(range(20, 52)), list(range(100, 110))
    plain = make_driver(load(target), LAYOUT)
    plain.add(2, [*prompt, *rest])
    expected = plain.generate(6)[2]
    driver = make_driver(load(target), LAYOUT)
    driver.add(0, range(60, 110))
    driver.step({0: 50})
    blocks = [driver._free.pop() for _ in range(5)]
    driver.add(1, [*prompt, 5]).tables[0] += blocks
    driver.add(2, [*prompt, *rest], shared=blocks[:4], computed=32)

    driver.step({0: 1, 1: 33} | ({2: 10} if is_together else {}), num_spec_tokens=4)
    result = driver.step({2: driver.remaining(2)}, num_spec_tokens=4)

    begin = len(driver.requests[2].output)
    assert proposals_of(result)[2] == expected[begin : begin + 4]


def test_a_block_that_is_given_again_is_computed_again_by_the_draft_model(load, target, make_driver):
    prompt = list(range(20, 52))
    plain = make_driver(load(target), LAYOUT)
    plain.add(2, [*prompt, 7])
    expected = plain.generate(6)[2]
    driver = make_driver(load(target), LAYOUT)
    driver.add(0, [*range(60, 92), 5])
    driver.step({0: 33}, num_spec_tokens=4)
    blocks = driver.remove(0).tables[0][:4]
    driver.add(1, [*prompt, 6])
    driver.step({1: 33})
    assert set(driver.requests[1].tables[0]) & set(blocks), "the driver deals freed blocks first"

    driver.add(2, [*prompt, 7], shared=driver.requests[1].tables[0][:4], computed=32)
    result = driver.step({2: 1}, num_spec_tokens=4)

    assert proposals_of(result)[2] == expected[1:5]


def test_prompts_in_chunks_are_computed_by_both(driver):
    first = driver.step(dict.fromkeys(driver.requests, 8), num_spec_tokens=3)
    second = driver.step({handle: driver.remaining(handle) for handle in driver.requests}, num_spec_tokens=3)

    assert proposals_of(first) == {}
    # The prompts of the others end with a block; that of the token behind them is not there yet.
    assert proposals_of(second).keys() == {1, 2, 3}


def test_a_block_takes_the_memory_of_both_models(load, target, cpu):
    alone = cpu.load_model(LoadRequest("target", target), lambda *_: None)
    both = load(target)

    assert both.kv_groups(16)[0].block_size_bytes == 2 * alone.kv_groups(16)[0].block_size_bytes
    assert both.info.weights_size_bytes == 2 * alone.info.weights_size_bytes


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"vocab_size": 300}, "same vocabulary size. The target has 272 tokens, the draft model 300"),
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 16}, "windows or states"),
    ],
)
def test_a_draft_model_that_does_not_fit_is_refused(load, tmp_path, changes, problem):
    with pytest.raises(ModelError, match=problem):
        load(save_tiny_model(tmp_path, **changes))


def test_a_target_that_also_embeds_is_refused(cpu, target):
    both = {"runner": "generate", "convert": "embed"}

    with pytest.raises(ModelError, match="only generate; a model that also embeds takes drafts of ngram or suffix"):
        cpu.load_model(LoadRequest("x", target, draft_method="draft_model", draft_path=target, **both), lambda *_: None)


def test_sequences_longer_than_the_draft_model_takes_are_refused(load, tmp_path):
    short = load(save_tiny_model(tmp_path, max_position_embeddings=128))

    with pytest.raises(FailedPrecondition, match="max_model_len 256 exceeds the 128 positions of the draft model"):
        short.make_runner(LAYOUT)


def test_a_device_without_draft_models_refuses_one(target):
    with pytest.raises(ModelError, match="A draft model is not supported for the sim device"):
        SimDevice(WorkerSettings(device="sim")).load_model(
            LoadRequest("x", target, draft_method="draft_model", draft_path=target), lambda *_: None
        )


def test_a_worker_without_a_draft_model_proposes_nothing(cpu, target, make_driver):
    worker, driver = Worker(cpu), make_driver(cpu.load_model(LoadRequest("x", target), lambda *_: None), LAYOUT)
    worker.load_model(str(target), lambda *_: None)
    worker.initialize_kv_cache(LAYOUT)
    driver.add(0, range(20, 30))
    plan = driver.plan({0: 10})

    with pytest.raises(InvalidRequest, match="num_spec_tokens 3: this worker was given no draft model"):
        worker.execute(worker.begin_stream(1), replace(plan, num_spec_tokens=3))


# --- messages ---------------------------------------------------------------------------------------------------------


def test_proposals_travel_as_columns(driver):
    result = finished(driver.runner.execute(driver.plan({1: driver.remaining(1)}, num_spec_tokens=2)))

    message = encode_result(result)

    assert decode_plan(worker_pb2.SchedulerOutput(num_spec_tokens=2)).num_spec_tokens == 2
    assert message.draft_tokens.handles == b"\1\0\0\0"
    assert message.draft_tokens.num_tokens == b"\2\0\0\0"
    assert len(message.draft_tokens.token_ids) == 8


def test_other_ways_of_drafting_on_the_worker_are_refused():
    assert decode_draft_method(worker_pb2.SpeculativeConfig(method="draft_model", model="small")) == "draft_model"
    assert decode_draft_method(worker_pb2.SpeculativeConfig(method="mtp")) == "mtp"
    with pytest.raises(Unsupported, match="'medusa' is not supported; use one of draft_model, eagle3, mtp"):
        decode_draft_method(worker_pb2.SpeculativeConfig(method="medusa", model="small"))
    with pytest.raises(InvalidRequest, match="'eagle3' needs a model"):
        decode_draft_method(worker_pb2.SpeculativeConfig(method="eagle3"))
    with pytest.raises(InvalidRequest, match="'mtp' takes no model"):
        decode_draft_method(worker_pb2.SpeculativeConfig(method="mtp", model="small"))


def test_a_step_whose_tokens_all_end_a_block_proposes_nothing(driver):
    result = driver.step({0: 16}, num_spec_tokens=4)

    assert result.token_ids.tolist()
    assert proposals_of(result) == {}
    again = driver.verify({0: []}, num_spec_tokens=4)
    assert len(proposals_of(again)[0]) == 4
