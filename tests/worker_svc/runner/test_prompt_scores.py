"""Scores of given ids at positions of a prompt, on the CPU, in stages and on the simulated device."""

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.ranks.groups import open_group
from tetrad.services.errors import InternalError, InvalidRequest
from tetrad.v1 import types_pb2
from tetrad.worker_svc.api.wire import decode_sampling
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec, ScoreIds
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.devices.sim import SimDevice
from tetrad.worker_svc.runner.prompt_scores import score_failures

PROMPT = np.random.default_rng(5).integers(3, 200, 40).tolist()


def asked(ids, start=0):
    return SamplingSpec(temperature=0.0, score_ids=ScoreIds(np.array(ids, np.int64), start))


def rows(num_rows, width=3):
    return np.random.default_rng(6).integers(0, 200, (num_rows, width))


def scores_of(driver, sampling, *, chunk=1000, prompt=PROMPT):
    """Return the scores that the steps of a prompt bring, which are those of the step with its first token."""
    driver.add(0, prompt, sampling)
    found = []
    while not driver.requests[0].output:
        result = driver.step({0: min(chunk, driver.remaining(0))})
        assert bool(result.prompt_scores) == bool(len(result.handles))
        found += result.prompt_scores
    [scores] = found
    assert scores.handle == 0
    return scores.scores


@pytest.fixture(scope="module")
def logprobs(tiny_llama):
    with torch.inference_mode():
        return tiny_llama[1](torch.tensor([PROMPT])).logits[0].log_softmax(-1).numpy()


@pytest.mark.parametrize("start", [0, 7, 38])
@pytest.mark.parametrize("chunk", [1000, 39, 8, 7])
def test_each_row_is_scored_behind_its_token(tiny, make_driver, logprobs, chunk, start):
    ids = rows(39 - start)

    found = scores_of(make_driver(tiny), asked(ids, start), chunk=chunk)

    np.testing.assert_allclose(found, logprobs[np.arange(start, 39)[:, None], ids], atol=1e-4)


def test_ids_of_all_rows_are_scored_behind_every_token(tiny, make_driver, logprobs):
    found = scores_of(make_driver(tiny), asked([[9, 4]], start=30))

    np.testing.assert_allclose(found, logprobs[30:39, [9, 4]], atol=1e-4)


def test_no_id_has_no_probability(tiny, make_driver, logprobs):
    ids = rows(39)
    ids[::2, 1] = -1

    found = scores_of(make_driver(tiny), asked(ids))

    assert (found[::2, 1] == -np.inf).all()
    np.testing.assert_allclose(found[1::2, 1], logprobs[np.arange(1, 39, 2), ids[1::2, 1]], atol=1e-4)


def test_a_request_that_was_preempted_has_the_same_scores(tiny, make_driver):
    expected = scores_of(make_driver(tiny), asked(rows(39)))
    driver = make_driver(tiny)
    driver.add(0, PROMPT, asked(rows(39)))
    driver.step({0: 20})
    driver.remove(0)

    found = scores_of(driver, asked(rows(39)), chunk=13)

    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_resumed_request_goes_on_without_rows(tiny, make_driver):
    """Its prompt and output come back together, as after the loss of a worker."""
    driver = make_driver(tiny)
    request = driver.add(0, PROMPT, asked(rows(39)))
    request.output, request.num_tokens = [5, 6], 42

    first, second = driver.step({0: 42}), driver.step({0: 1})

    assert [len(result.handles) for result in (first, second)] == [1, 1]
    assert not second.prompt_scores


@pytest.mark.parametrize(("ids", "start"), [([[1]], 39), (rows(39), 1), (rows(40), 0), (rows(2), 0)])
def test_rows_that_do_not_fit_the_prompt_fail_the_request_alone(tiny, make_driver, ids, start):
    driver = make_driver(tiny)
    driver.add(0, PROMPT, asked(ids, start))

    result = finished(driver.runner.execute(driver.plan({0: 40})))

    [(handle, error)] = result.failures
    assert (handle, type(error)) == (0, InvalidRequest)
    assert "of a prompt of 40 tokens" in error.message


def test_scores_that_are_no_numbers_fail_the_request(tiny, make_driver, monkeypatch):
    driver = make_driver(tiny)
    driver.add(0, PROMPT, asked([[1, 2]]))
    monkeypatch.setattr(driver.runner, "_prompt_logits", lambda hidden, _: torch.full((len(hidden), 300), torch.nan))

    result = finished(driver.runner.execute(driver.plan({0: 40})))

    assert [(handle, type(error)) for handle, error in result.failures] == [(0, InternalError)]
    assert not result.prompt_scores
    assert score_failures([]) == []


def test_stages_bring_the_same_scores(tiny_llama, tiny, make_driver, tmp_path):
    expected = scores_of(make_driver(tiny), asked(rows(39)))

    with open_group(tmp_path, 1, 2) as group:
        found = scores_of(Driver(group, group.load(tiny_llama[0])), asked(rows(39)), chunk=17)

    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_simulated_device_makes_scores_up(tiny_llama):
    device = SimDevice(WorkerSettings(device="sim"))
    model = device.load_model(LoadRequest("x", tiny_llama[0]), lambda *_: None)

    found = scores_of(Driver(model.make_runner(LAYOUT)), asked([[10, -1]], start=37), chunk=16)

    np.testing.assert_allclose(found, [[-1.0, -np.inf]] * 2)


def test_the_message_has_rows_of_ids():
    message = types_pb2.PromptScoreIds(token_ids=np.array([1, 2, 3, 2**32 - 1], "<u4").tobytes(), width=2, start=5)

    read = decode_sampling(types_pb2.SamplingParams(prompt_score_ids=message)).score_ids

    assert (read.token_ids.tolist(), read.start) == ([[1, 2], [3, -1]], 5)
    with pytest.raises(InvalidRequest, match="has 4 ids, which are no rows of 3"):
        message.width = 3
        decode_sampling(types_pb2.SamplingParams(prompt_score_ids=message))
