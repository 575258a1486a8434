"""The requests of a program that steps its engine."""

import asyncio

import pytest

from tetrad.frontend.request.pooling import PooledTensor, PoolingParams, PoolingRequestOutput
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.library.engine_requests import EngineRequests
from tetrad.library.llm_engine import LLMEngine
from tetrad.services.errors import InvalidRequest


class Job:
    """A pooling request whose answer is its prompt."""

    def __init__(self, prompt):
        self._prompt = prompt

    async def answers(self):
        return [PoolingRequestOutput("r", PooledTensor((1,), memoryview(b"\0")), self._prompt)]


class Frontend:
    async def add_request(self, request_id, prompt, params, **options):
        raise AssertionError("a wrong request is not sent")

    async def add_pooling_request(self, request_id, prompts, params):
        return Job(prompts[0])


async def test_an_aborted_pooling_request_has_no_answer_even_if_it_arrived_before():
    """The answer waits for the next step of the program, which aborts the request and uses its id again."""
    requests = EngineRequests(Frontend())
    await requests.add_pooling("r", [1], PoolingParams())
    await asyncio.sleep(0)

    await requests.abort(["r"])
    assert not requests.has_outputs
    await requests.add_pooling("r", [2], PoolingParams())

    assert [output.prompt_token_ids for output in await requests.next_outputs()] == [[2]]
    assert not requests.has_outputs


@pytest.mark.parametrize("params", [SamplingParams(), PoolingParams()])
def test_an_adapter_that_is_no_lora_request_is_named(params):
    engine = object.__new__(LLMEngine)  # it refuses the request before it needs an engine core

    with pytest.raises(TypeError, match=r"lora_request must be a LoRARequest, got str\."):
        engine.add_request("r", [1], params, lora_request="adapter")


async def test_parameters_that_a_program_changed_are_checked_again():
    requests = EngineRequests(Frontend())
    params = SamplingParams()
    params.n = 0

    with pytest.raises(InvalidRequest, match="n must be at least 1, got 0"):
        await requests.add("r", [1], params)

    assert not requests.has_outputs
