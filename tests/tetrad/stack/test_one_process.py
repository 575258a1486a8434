"""The four services in one process and event loop: AsyncLLM behaves the same over each carrier."""

import asyncio
import json

import pytest

from tests.carriers import OVER_EACH_CARRIER, make_carrier
from tests.e2e.tiny_model import save_tiny_model
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.services.errors import InvalidRequest, PromptTooLong
from tetrad.services.rpc.carrier import GRPC
from tetrad.stack.one_process import OneProcessSettings, running

pytestmark = OVER_EACH_CARRIER

WORKER = {"device": "cpu", "threads": 1}
ENGINE_CORE = {"num_gpu_blocks_override": 128, "max_num_seqs": 16}
SEEDED = {"temperature": 1.0, "seed": 7, "max_tokens": 12, "ignore_eos": True}
FINAL, DELTA = RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def carrier(request):
    return make_carrier(request)


@pytest.fixture
def settings(tiny_model, socket_directory):
    return OneProcessSettings.of(str(tiny_model), f"unix:{socket_directory}", worker=WORKER, engine_core=ENGINE_CORE)


@pytest.fixture
async def llm(settings, carrier):
    async with running(settings, carrier) as llm:
        yield llm


async def outputs_of(llm, prompt="The cat", request_id="r", **params):
    fields = {"output_kind": FINAL} | params
    return [output async for output in llm.generate(prompt, SamplingParams(**fields), request_id)]


async def completion(llm, *args, **params):
    [output] = await outputs_of(llm, *args, **params)
    return output


async def test_a_completion_has_its_text_and_its_end(llm):
    output = await completion(llm, max_tokens=6, temperature=0, ignore_eos=True)

    assert output.finished
    assert output.outputs[0].finish_reason == "length"
    assert len(output.outputs[0].token_ids) == 6
    assert output.outputs[0].text


async def test_tokens_are_those_of_the_other_carriers(llm, tiny_model):
    here = await completion(llm, **SEEDED)

    apart = OneProcessSettings.of(str(tiny_model), "direct", worker=WORKER, engine_core=ENGINE_CORE)
    async with running(apart, DirectCarrier()) as other:
        there = await completion(other, **SEEDED)

    assert here.outputs[0].token_ids == there.outputs[0].token_ids


async def test_streamed_deltas_add_up_to_the_completion(llm):
    whole = await completion(llm, **SEEDED)

    deltas = await outputs_of(llm, **SEEDED, output_kind=DELTA)

    assert len(deltas) > 1
    assert "".join(each.outputs[0].text for each in deltas) == whole.outputs[0].text


async def test_a_batch_brings_each_request_its_tokens_alone(llm):
    alone = [await completion(llm, f"prompt {i}", **SEEDED) for i in range(5)]

    together = await asyncio.gather(*(completion(llm, f"prompt {i}", str(i), **SEEDED) for i in range(5)))

    assert [each.outputs[0].token_ids for each in together] == [each.outputs[0].token_ids for each in alone]


async def test_n_sequences_end_together(llm):
    output = await completion(llm, **SEEDED, n=3)

    assert len({tuple(each.token_ids) for each in output.outputs}) == 3


async def test_log_probabilities_come_with_each_token(llm):
    output = await completion(llm, **SEEDED, logprobs=2, prompt_logprobs=1)

    rows = output.outputs[0].logprobs
    assert [token_id in row for token_id, row in zip(output.outputs[0].token_ids, rows, strict=True)] == [True] * 12
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


async def test_a_structured_output_fits_its_schema(llm):
    schema = {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 3}

    output = await completion(llm, max_tokens=40, seed=1, structured_outputs=StructuredOutputsParams(json=schema))

    assert set(json.loads(output.outputs[0].text)) <= {1, 2, 3}


async def test_an_abort_ends_a_stream_and_frees_its_blocks(llm):
    params = SamplingParams(max_tokens=400, ignore_eos=True, output_kind=DELTA)
    stream = await llm.add_request("r", "The cat", params)
    await anext(stream)

    await llm.abort("r")
    last = [output async for output in stream][-1]

    assert last.outputs[0].finish_reason == "abort"
    async with asyncio.timeout(10):
        while (await llm.engine_admin.loads_known())[0].scheduler.kv_cache_usage:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_errors_of_every_service_reach_their_own_request(llm):
    good = asyncio.create_task(completion(llm, request_id="good", **SEEDED))

    with pytest.raises(PromptTooLong):
        await completion(llm, "x" * 600, "long")
    with pytest.raises(InvalidRequest, match=r"grammar|regex"):
        await completion(llm, "The cat", "wrong", structured_outputs=StructuredOutputsParams(regex="["))

    assert len((await good).outputs[0].token_ids) == 12


async def test_only_grpc_opens_sockets(llm, carrier, socket_directory):
    await completion(llm, **SEEDED)

    assert bool(list(socket_directory.iterdir())) is (carrier is GRPC)
