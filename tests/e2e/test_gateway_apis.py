"""The APIs of foreign gateways on a live stack, over their own messages. `make gateways-test` has the gateways themselves."""

import contextlib
import hashlib
import io
import itertools
import json
import zipfile

import grpc
import httpx
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc
from tokenizers import Tokenizer

from tetrad.openengine_api import control_pb2 as openengine_control_pb2
from tetrad.openengine_api import control_pb2_grpc as openengine_control_grpc
from tetrad.openengine_api import inference_pb2 as openengine_pb2
from tetrad.openengine_api import inference_pb2_grpc as openengine_pb2_grpc
from tetrad.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tetrad.vllm_api import control_pb2, control_pb2_grpc
from tetrad.vllm_api import inference_pb2 as vllm_pb2
from tetrad.vllm_api import inference_pb2_grpc as vllm_pb2_grpc

IDS = [504, 3575, 282, 4649, 314]


@pytest.fixture
def channel(sim_server):
    with grpc.insecure_channel(sim_server.grpc_target) as opened:
        yield opened


@pytest.fixture
def engine(channel):
    return vllm_engine_pb2_grpc.VllmEngineStub(channel)


def engine_request(*, stream=True, **params):
    return vllm_engine_pb2.GenerateRequest(
        request_id="gateway-1",
        tokenized=vllm_engine_pb2.TokenizedInput(input_ids=IDS),
        sampling_params=vllm_engine_pb2.SamplingParams(**({"temperature": 0.0, "seed": 3, "max_tokens": 12} | params)),
        stream=stream,
    )


def test_all_apis_generate_the_same_ids(channel, engine):
    params = types_pb2.SamplingParams(temperature=0, seed=3, max_tokens=12)
    native = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIdList(ids=IDS), sampling_params=params)
    upstream = vllm_pb2.GenerateRequest(
        token_ids=vllm_pb2.TokenIds(ids=IDS),
        sampling=vllm_pb2.RandomSampling(seed=3),
        stopping=vllm_pb2.StoppingCriteria(max_new_tokens=12),
        response=vllm_pb2.ResponseOptions(output_token_ids=True),
    )
    openengine = openengine_pb2.GenerateRequest(
        token_ids=openengine_pb2.TokenIds(ids=IDS),
        sampling=openengine_pb2.SamplingParams(temperature=0, seed=3),
        stopping=openengine_pb2.StoppingOptions(max_tokens=12),
    )
    expected = [i for each in inference_pb2_grpc.InferenceServiceStub(channel).Generate(native) for i in each.token_ids]

    streamed = [i for each in engine.Generate(engine_request()) for i in each.chunk.token_ids]
    [whole] = engine.Generate(engine_request(stream=False))
    vllm = vllm_pb2_grpc.InferenceStub(channel)
    vllm_streamed = [i for each in vllm.GenerateStream(upstream) for i in each.outputs.token_ids]
    vllm_whole = vllm.Generate(upstream)
    *events, last = openengine_pb2_grpc.InferenceStub(channel).Generate(openengine)

    assert len(expected) == 12
    assert streamed == list(whole.complete.output_ids) == expected
    assert vllm_streamed == list(vllm_whole.outputs.token_ids) == expected
    assert [token.token_id for each in events for token in each.token.tokens] == expected
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(IDS), 12)


def test_logprobs_are_those_of_http(sim_server, engine):
    body = {"prompt": IDS, "max_tokens": 3, "temperature": 0, "seed": 3, "logprobs": 2}
    over_http = httpx.post(f"{sim_server.url}/v1/completions", json=body).json()["choices"][0]["logprobs"]

    [answer] = engine.Generate(engine_request(stream=False, max_tokens=3, logprobs=2))

    columns = answer.complete.output_logprobs
    assert list(columns.token_logprobs) == pytest.approx(over_http["token_logprobs"], abs=1e-4)
    assert [len(top.values) for top in columns.top_logprobs] == [2, 2, 2]


@pytest.mark.parametrize("api", ["smg", "vllm", "openengine"])
def test_abort_frees_blocks_and_ends_the_open_stream(sim_server, channel, engine, api):
    if api == "smg":
        call = engine.Generate(engine_request(max_tokens=4000, ignore_eos=True))
        abort, message = engine.Abort, vllm_engine_pb2.AbortRequest(request_ids=["gateway-1"])
    elif api == "openengine":
        limits = openengine_pb2.StoppingOptions(max_tokens=4000, ignore_eos=True)
        wanted = openengine_pb2.GenerateRequest(
            request_id="gateway-1", token_ids=openengine_pb2.TokenIds(ids=IDS), stopping=limits
        )
        call = openengine_pb2_grpc.InferenceStub(channel).Generate(wanted)
        abort = openengine_control_grpc.ControlStub(channel).Abort
        message = openengine_control_pb2.AbortRequest(request_id="gateway-1")
    else:
        stopping = vllm_pb2.StoppingCriteria(max_new_tokens=4000, ignore_eos=True)
        request = vllm_pb2.GenerateRequest(request_id="gateway-1", token_ids=vllm_pb2.TokenIds(ids=IDS), stopping=stopping)
        call = vllm_pb2_grpc.InferenceStub(channel).GenerateStream(request)
        abort, message = control_pb2_grpc.ControlStub(channel).Abort, control_pb2.AbortRequest(request_ids=["gateway-1"])
    next(call)
    assert sim_server.metric("num_requests_running") == 1

    abort(message)

    *_, last = call
    if api == "smg":
        assert last.complete.finish_reason == "abort"
    elif api == "openengine":
        assert last.finished.reason == openengine_pb2.FINISH_REASON_CANCELLED
    else:
        assert last.outputs.finish_info.finish_reason == vllm_pb2.FinishInfo.ABORTED
    sim_server.wait_idle(10)


def test_the_tokenizer_that_is_handed_out_makes_the_same_ids(sim_server, engine):
    *chunks, last = engine.GetTokenizer(common_pb2.GetTokenizerRequest())
    data = b"".join(chunk.data for chunk in (*chunks, last))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
        config = json.loads(archive.read("tokenizer_config.json"))

    text = "The capital of France is Paris, and 2 + 2 = 4."
    over_http = httpx.post(f"{sim_server.url}/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    facts = httpx.get(f"{sim_server.url}/tokenizer_info").json()

    assert hashlib.sha256(data).hexdigest() == last.sha256
    assert tokenizer.encode(text, add_special_tokens=False).ids == over_http
    assert "chat_template" in config
    for name in ("bos_token", "eos_token"):
        assert tokenizer.token_to_id(facts[name]) == facts[f"{name}_id"]


def test_the_load_counts_what_runs(engine):
    call = engine.Generate(engine_request(max_tokens=4000, ignore_eos=True))
    next(call)

    [load] = engine.GetLoads(vllm_engine_pb2.GetLoadsRequest()).loads
    call.cancel()

    assert (load.num_running_reqs, load.num_total_reqs) == (1, 1)
    assert 0 < load.num_used_tokens < load.max_total_num_tokens


def test_kv_events_begin_with_what_is_cached_and_go_on_with_what_changes(sim_server, engine):
    with subscribed(engine) as events:
        assert next(events).events[0].HasField("cleared")
        run(engine, prompt := list(range(1000, 1064)))
        first = stored_in(events, prompt)

    with subscribed(engine, start=40) as events:
        cleared, told = next(events), next(events)
        again = stored_in(itertools.chain([told], events), prompt)

    assert [i for block in first for i in block.token_ids] == prompt[: len(first) * first[0].block_size]
    assert len(first) >= 3
    assert (cleared.sequence_number, told.sequence_number, told.dp_rank) == (40, 41, 0)
    assert again == first


@contextlib.contextmanager
def subscribed(engine, start=0):
    call = engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=start))
    yield call
    call.cancel()


def run(engine, ids):
    request = engine_request(max_tokens=2)
    request.tokenized.input_ids[:] = ids
    list(engine.Generate(request))


def stored_in(events, prompt):
    """Return the blocks of a prompt in the next batch that stores any: what others asked for is told, too."""
    for batch in events:
        blocks = [block for event in batch.events for block in event.stored.blocks]
        if own := [block for block in blocks if set(block.token_ids) <= set(prompt)]:
            return own
    return []
