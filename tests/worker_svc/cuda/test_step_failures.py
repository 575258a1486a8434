"""The result of a request that fails alone: its error and nothing else, on the CPU and on the CUDA device."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import SMALL, TINY
from tetrad.services.errors import InternalError, InvalidRequest
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.plan import GrammarRows, SamplingSpec
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.devices.cpu import CpuDevice

FAILING, OTHER = 1, 2
BROKEN_TOKEN = 8
PROMPT = [5, 6, 7]
ASKS = {"num_logprobs": 1, "num_prompt_logprobs": 1}


@pytest.fixture(params=["cpu", "cuda"])
def driver(request):
    model = request.getfixturevalue({"cpu": "tiny", "cuda": "tiny_cuda"}[request.param])
    return Driver(model.make_runner(SMALL), SMALL)


def handles_of(result):
    """Return whose tokens, log-probabilities, prompt log-probabilities and failures a result has."""
    return (
        result.handles.tolist(),
        [handle for group in result.logprobs for handle in group.handles.tolist()],
        [each.handle for each in result.prompt_logprobs],
        [handle for handle, _ in result.failures],
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_nothing_is_left_brings_its_error_and_nothing_else(driver, temperature):
    for handle in (FAILING, OTHER):
        driver.add(handle, PROMPT, SamplingSpec(temperature=temperature, seed=1, **ASKS))
    nothing = GrammarRows(np.array([FAILING]), np.zeros((1, 10), np.uint32))
    plans = [driver.plan({FAILING: 3, OTHER: 3}, grammar=nothing), driver.plan({FAILING: 1, OTHER: 1})]

    launched = [driver.runner.execute(plan) for plan in plans]  # the second one before the failure is known
    first, second = (finished(step) for step in launched)

    assert handles_of(first) == ([OTHER], [OTHER], [OTHER], [FAILING])
    assert isinstance(first.failures[0][1], InvalidRequest)
    assert len(first.logprobs) == 1
    assert first.logprobs[0].rows.logprobs.shape == (1, 2)
    assert handles_of(second) == ([OTHER], [OTHER], [], [])


def test_the_only_row_of_a_width_leaves_no_empty_columns(driver):
    driver.add(FAILING, PROMPT, SamplingSpec(temperature=0.0, num_logprobs=3))
    driver.add(OTHER, PROMPT)
    nothing = GrammarRows(np.array([FAILING]), np.zeros((1, 10), np.uint32))

    result = finished(driver.runner.execute(driver.plan({FAILING: 3, OTHER: 3}, grammar=nothing)))

    assert list(result.logprobs) == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_model_without_numbers_fails_the_request_and_brings_no_logprobs(tiny, make_driver, monkeypatch, value):
    driver = make_driver(tiny)
    for handle in (FAILING, OTHER):
        driver.add(handle, PROMPT, SamplingSpec(temperature=1.0, seed=1, num_logprobs=2))
    spoil_logits(monkeypatch, driver.runner, row=0, value=value)

    result = driver.runner.execute(driver.plan({FAILING: 3, OTHER: 3}))

    assert handles_of(result) == ([OTHER], [OTHER], [], [FAILING])
    assert isinstance(result.failures[0][1], InternalError)


def test_prompt_logprobs_that_are_no_numbers_fail_the_request(tiny, make_driver, monkeypatch):
    """Although its last token's logits are numbers, and it could go on."""
    driver = make_driver(tiny)
    for handle in (FAILING, OTHER):
        driver.add(handle, PROMPT, SamplingSpec(temperature=0.0, **ASKS))
    spoil_logits(monkeypatch, driver.runner, row=1, value=torch.nan, of_prompts=True)

    first = driver.runner.execute(driver.plan({FAILING: 3, OTHER: 3}))
    second = driver.runner.execute(driver.plan({FAILING: 1, OTHER: 1}))

    assert handles_of(first) == ([OTHER], [OTHER], [OTHER], [FAILING])
    assert "token 2 of the prompt" in first.failures[0][1].message
    assert handles_of(second) == ([OTHER], [OTHER], [], [])


@pytest.fixture(scope="module")
def broken_path(tmp_path_factory):
    """A model in which one token's embedding is not a number."""
    directory = tmp_path_factory.mktemp("broken")
    save_tiny(directory, tiny_config("LlamaForCausalLM", **TINY))
    file = directory / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][BROKEN_TOKEN] = torch.nan
    save_file(weights, file)
    return directory


@pytest.fixture(params=["native", "torch", "cuda"])
def broken_model(request, broken_path, load_cuda):
    if request.param == "cuda":
        return load_cuda(broken_path)
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels=request.param))
    device.set_up()
    return device.load_model(LoadRequest(str(broken_path), broken_path), lambda *_: None)


def test_blocks_of_a_request_without_numbers_spoil_no_other_request(broken_model):
    """Blocks are handed out again as they are; whoever fills one half reads nothing of what is in the other."""
    driver = Driver(broken_model.make_runner(SMALL), SMALL)
    driver.add(OTHER, PROMPT)
    expected = driver.generate(4)[OTHER]
    driver.remove(OTHER)
    driver.add(FAILING, [*PROMPT, BROKEN_TOKEN] * 8)
    failed = finished(driver.runner.execute(driver.plan({FAILING: 32})))
    spoiled = driver.remove(FAILING).blocks

    driver.add(OTHER, PROMPT)
    driver.add(3, [9] * 17)
    outputs = driver.generate(4)

    assert [handle for handle, _ in failed.failures] == [FAILING]
    assert set(spoiled) & set(driver.requests[OTHER].blocks + driver.requests[3].blocks)
    assert outputs[OTHER] == expected


def spoil_logits(monkeypatch, runner, *, row, value, of_prompts=False):
    """Put a value in one row of the next logits that the model makes: those of the first prompt, or of what is sampled."""
    make, pending = runner._model.logits, [True]

    def logits(hidden):
        found = make(hidden)
        if pending and (of_prompts or len(hidden) == 2):
            pending.clear()
            found[row, 7] = value
        return found

    monkeypatch.setattr(type(runner._model), "logits", lambda self, hidden: logits(hidden))
