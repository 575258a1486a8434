"""An asyncio program's AsyncLLM, over a fake frontend."""

from types import SimpleNamespace

import pytest

from tetrad.frontend.llm.beam_search import BeamSearchParams
from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.library.async_llm import AsyncLLM
from tetrad.services.errors import InvalidRequest, Unavailable


class Frontend:
    """Keeps the parameters and the options of requests."""

    def __init__(self):
        self.params, self.options = [], []

    async def add_request(self, request_id, prompt, params, **options):
        self.params.append(params)
        self.options.append(options)


@pytest.fixture
def llm():
    llm = AsyncLLM(SimpleNamespace())
    llm._frontend = Frontend()
    return llm


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("n", 0, "n must be at least 1, got 0."),
        ("max_tokens", 0, "max_tokens must be at least 1, got 0."),
        ("temperature", "hot", "temperature must be a number, got 'hot'."),
        ("stop", [""], "stop cannot contain an empty string."),
    ],
)
async def test_parameters_that_a_program_changed_are_checked_again(llm, name, value, text):
    params = SamplingParams()
    setattr(params, name, value)

    with pytest.raises(InvalidRequest) as caught:
        await llm.add_request("r", "Hello", params)

    assert (caught.value.message, caught.value.field) == (text, name)


@pytest.mark.parametrize("ended", [True, False, None])
async def test_a_program_may_say_whether_the_reasoning_has_ended(llm, ended):
    await llm.add_request("r", "Hello", SamplingParams(), reasoning_ended=ended)

    [options] = llm._frontend.options
    assert options["reasoning_ended"] is ended


async def test_changed_parameters_take_effect_and_stay_the_programs_own(llm):
    params = SamplingParams(top_p=0.5)
    params.temperature, params.stop = 0.0, "a"

    await llm.add_request("r", "Hello", params)

    [sent] = llm._frontend.params
    assert (sent.temperature, sent.top_p, sent.stop) == (0.0, 1.0, ["a"])
    assert (params.top_p, params.stop) == (0.5, "a")


async def test_other_values_than_sampling_params_are_named(llm):
    with pytest.raises(TypeError, match="sampling_params must be SamplingParams, got dict"):
        await llm.add_request("r", "Hello", {"n": 1})


class Services:
    """Counts starts and closes."""

    def __init__(self):
        self.num_started = self.num_closed = 0

    async def start(self):
        self.num_started += 1
        return SimpleNamespace(model_copy=lambda update: None)

    async def close(self):
        self.num_closed += 1


async def test_a_closed_llm_refuses_requests_and_starts_nothing(llm):
    """A request that waits for the end of `close` would otherwise start services that nobody closes."""
    services = llm._services = Services()
    llm._frontend = None
    await llm.close()

    with pytest.raises(Unavailable, match=r"This AsyncLLM was closed\."):
        await llm.add_request("r", "Hello", SamplingParams())

    assert services.num_started == 0


async def test_a_stat_logger_that_cannot_be_made_leaves_no_frontend(monkeypatch):
    closed = []

    class Connected:
        async def close(self):
            closed.append(self)

    async def connect(settings):
        return Connected()

    def broken(config, engine_index):
        raise RuntimeError("no disk")

    monkeypatch.setattr("tetrad.library.async_llm.Frontend.connect", connect)
    monkeypatch.setattr("tetrad.library.async_llm.config_of", lambda frontend, args: None)
    llm = AsyncLLM(Services(), stat_loggers=[broken])

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no disk"):
            await llm.start()

    assert (len(closed), llm._services.num_closed) == (2, 2)


async def test_parameters_of_a_beam_search_are_checked_again(llm):
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    params.beam_width = 0

    with pytest.raises(InvalidRequest, match="beam_width must be at least 1, got 0"):
        await llm.beam_search("Hello", params)
    with pytest.raises(TypeError, match="params must be BeamSearchParams, got SamplingParams"):
        await llm.beam_search("Hello", SamplingParams())


async def test_other_values_than_lora_requests_are_named(llm):
    with pytest.raises(TypeError, match=r"lora_request must be a LoRARequest, got list\."):
        await llm.add_request("r", "Hello", SamplingParams(), lora_request=[7])
    with pytest.raises(TypeError, match=r"lora_request must be a LoRARequest, got str\."):
        await llm.encode("Hello", PoolingParams(), "r", lora_request="adapter").__anext__()

    assert llm._frontend.params == []


async def test_a_request_may_have_a_prediction(llm):
    await llm.add_request("r", "Hello", SamplingParams(), prediction="Hello, World")
    await llm.add_request("r", "Hello", SamplingParams())

    assert [options["prediction"] for options in llm._frontend.options] == ["Hello, World", ""]
