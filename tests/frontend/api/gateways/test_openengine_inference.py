"""openengine.v1.Inference: events of a request, translation of its fields, log-probabilities and ends of outputs."""

import grpc
import pytest

from tests.frontend.api.gateways.calls import answers_of, refusal_of
from tests.frontend.api.gateways.requests import openengine_request as request
from tests.frontend.fakes import EOS, TEXT
from tetrad.frontend.api.http.sse import rendering
from tetrad.openengine_api import inference_pb2, inference_pb2_grpc
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import unpack_u32

IDS = list(TEXT.encode())
Guided = inference_pb2.GuidedDecoding
Kv = inference_pb2.KvOptions
Response = inference_pb2.ResponseOptions
Sampling = inference_pb2.SamplingParams
Select = inference_pb2.CandidateTokenSelection
Stop = inference_pb2.StopCondition
Stopping = inference_pb2.StoppingOptions
Tokens = inference_pb2.TokenIds


async def test_a_request_has_tokens_and_text_and_ends_with_its_usage(inference):
    *tokens, last = await answers_of(inference.Generate(request(request_id="r1")))

    assert [token.token_id for each in tokens for token in each.token.tokens] == IDS[:9]
    assert "".join(each.token.text for each in tokens) == TEXT[:9]
    assert {(each.request_id, each.WhichOneof("event"), each.HasField("usage")) for each in tokens} == {("r1", "token", False)}
    assert all(each.token.HasField("output_index") for each in tokens)
    assert (last.finished.output_index, last.finished.reason) == (0, inference_pb2.FINISH_REASON_LENGTH)
    assert last.usage == inference_pb2.Usage(prompt_tokens=2, completion_tokens=9, total_tokens=11, cached_prompt_tokens=0)


async def test_a_request_without_an_id_is_given_one(inference):
    events = await answers_of(inference.Generate(request(prompt="hi")))

    assert len({each.request_id for each in events}) == 1
    assert events[0].request_id


async def test_each_output_finishes_once_and_the_last_one_has_the_usage_of_all(inference):
    events = await answers_of(inference.Generate(request(sampling=Sampling(num_sequences=3))))

    finished = [each for each in events if each.HasField("finished")]
    assert sorted(each.finished.output_index for each in finished) == [0, 1, 2]
    assert [each.HasField("usage") for each in finished] == [False, False, True]
    assert events[-1].usage.completion_tokens == 27


async def test_the_engine_is_asked_for_what_the_message_says(inference, engine):
    message = request(
        request_id="theirs",
        model="fake",
        sampling=Sampling(
            temperature=0.7,
            top_p=0.5,
            top_k=5,
            min_p=0.25,
            frequency_penalty=0.5,
            presence_penalty=-0.5,
            repetition_penalty=1.5,
            seed=3,
        ),
        stopping=Stopping(max_tokens=9, min_tokens=2, conditions=[Stop(stop_token_id=7)], ignore_eos=True),
        kv=Kv(bypass_prefix_cache=True, cache_salt="salt"),
        guided=Guided(json_schema='{"type": "object"}', backend="llguidance"),
    )
    metadata = (("openengine-priority", "-4"), ("openengine-target-dp-rank", "0"))

    await answers_of(inference.Generate(message, metadata=metadata))

    [asked] = engine.requests
    sampling = asked.sampling_params
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (pytest.approx(0.7), 0.5, 5)
    assert (sampling.min_p, sampling.frequency_penalty, sampling.presence_penalty) == (0.25, 0.5, -0.5)
    assert (sampling.repetition_penalty, sampling.seed) == (1.5, 3)
    assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (9, 2, True)
    assert 7 in sampling.stop_token_ids
    assert sampling.structured_outputs.json_schema == '{"type": "object"}'
    assert (asked.cache_salt, asked.priority, asked.external_req_id, asked.data_parallel_rank) == ("salt", -4, "theirs", 0)
    assert unpack_u32(asked.prompt_token_ids) == [1, 2]
    assert sampling.skip_reading_prefix_cache


async def test_an_explicit_zero_counts_and_an_absent_value_is_the_model_s_default(tokenizer, engine, serve_frontend):
    tokenizer.generation_config = '{"temperature": 0.25, "top_k": 7}'
    async with serve_frontend(listen="127.0.0.1:0") as frontend, open_channel(frontend.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        await answers_of(stub.Generate(inference_pb2.GenerateRequest(prompt="hi")))
        await answers_of(stub.Generate(request(sampling=Sampling(temperature=0.0))))

    absent, zero = (each.sampling_params for each in engine.requests)
    assert (absent.temperature, absent.top_k, absent.max_tokens) == (0.25, 7, 510)
    assert zero.temperature == 0.0


@pytest.mark.parametrize(("given", "used"), [(2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 2, -2), (2**64 - 1, 0)])
async def test_a_seed_has_64_bits_and_never_stands_for_a_random_one(inference, engine, given, used):
    await answers_of(inference.Generate(request(sampling=Sampling(seed=given))))

    assert engine.requests[0].sampling_params.seed == used


@pytest.mark.parametrize(
    ("guided", "field", "value"),
    [
        (Guided(regex="[a-z]+"), "regex", "[a-z]+"),
        (Guided(ebnf_grammar='root ::= "a"'), "grammar", 'root ::= "a"'),
        (Guided(structural_tag='{"a": 1}'), "structural_tag", '{"a": 1}'),
        (Guided(json_object=inference_pb2.JsonObjectConstraint()), "json_object", True),
    ],
)
async def test_constraints_by_their_kind(inference, engine, guided, field, value):
    await answers_of(inference.Generate(request(guided=guided)))

    assert getattr(engine.requests[0].sampling_params.structured_outputs, field) == value


async def test_a_constraint_of_choices(inference, engine):
    await answers_of(inference.Generate(request(guided=Guided(choice=inference_pb2.ChoiceConstraint(choices=["a", "b"])))))

    assert list(engine.requests[0].sampling_params.structured_outputs.choice.choices) == ["a", "b"]


async def test_an_adapter_is_named_by_a_field_of_its_own(engine, serve_frontend):
    engine.supports_lora = True
    settings = {"lora_modules": ("sql=/a",), "engine_admin_targets": ()}
    async with serve_frontend(listen="127.0.0.1:0", **settings) as frontend, open_channel(frontend.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        await answers_of(stub.Generate(request(lora_name="sql")))
        refused = await refusal_of(answers_of(stub.Generate(request(model="sql"))))

    assert engine.requests[0].lora_request.path == "/a"
    assert refused == (grpc.StatusCode.NOT_FOUND, "model")


@pytest.mark.parametrize("num_many", [1, 4096], ids=["in the side thread", "in the event loop"])
async def test_log_probabilities_of_prompt_and_output(inference, monkeypatch, num_many):
    monkeypatch.setattr(rendering, "_MANY", num_many)
    options = Response(
        return_prompt_logprobs=True,
        prompt_candidates=Select(top_n=1),
        return_output_logprobs=True,
        output_candidates=Select(top_n=2),
    )
    message = request(token_ids=Tokens(ids=[1, 2, 3]), response=options, stopping=Stopping(max_tokens=1))

    prompt, token, _ = await answers_of(inference.Generate(message))

    first, second, third = prompt.prompt.tokens
    assert (first.token_id, first.HasField("logprob"), first.HasField("rank"), len(first.candidates)) == (1, False, False, 0)
    assert (second.token_id, second.logprob, second.rank) == (2, -0.5, 1)
    assert [each.token_id for each in third.candidates] == [3]
    [made] = token.token.tokens
    assert (made.token_id, made.token, made.logprob, made.rank) == (IDS[0], TEXT[0], -0.5, 1)
    assert [(each.token_id, each.logprob) for each in made.candidates] == [(IDS[0], -0.5), (IDS[0] + 1, -1.5)]


async def test_log_probabilities_without_a_selection_have_no_candidates(inference):
    [token, _] = await answers_of(
        inference.Generate(request(response=Response(return_output_logprobs=True), stopping=Stopping(max_tokens=1)))
    )

    assert (token.token.tokens[0].logprob, len(token.token.tokens[0].candidates)) == (-0.5, 0)


async def test_chosen_candidates_are_asked_for_by_their_ids(inference, engine):
    options = Response(return_output_logprobs=True, output_candidates=Select(token_ids=Tokens(ids=[5, IDS[0]])))

    [token, _] = await answers_of(inference.Generate(request(response=options, stopping=Stopping(max_tokens=1))))

    assert list(engine.requests[0].sampling_params.logprob_token_ids) == [5, IDS[0]]
    assert [each.token_id for each in token.token.tokens[0].candidates] == [IDS[0]]  # the fake has no others


async def test_all_candidates_need_a_server_without_a_limit(inference, serve_frontend):
    options = Response(return_output_logprobs=True, output_candidates=Select(all=inference_pb2.AllCandidates()))
    message = request(response=options, stopping=Stopping(max_tokens=1))

    assert await refusal_of(answers_of(inference.Generate(message))) == (grpc.StatusCode.INVALID_ARGUMENT, "logprobs")
    async with (
        serve_frontend(listen="127.0.0.1:0", max_logprobs=-1) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        [token, _] = await answers_of(inference_pb2_grpc.InferenceStub(channel).Generate(message))
    assert len(token.token.tokens[0].candidates) == 128


async def test_prompt_log_probabilities_begin_where_they_are_wanted(inference):
    options = Response(return_prompt_logprobs=True, prompt_logprob_start=2)
    message = request(token_ids=Tokens(ids=[1, 2, 3]), response=options)

    prompt, *_ = await answers_of(inference.Generate(message))

    assert [each.HasField("logprob") for each in prompt.prompt.tokens] == [False, False, True]


@pytest.mark.parametrize(
    ("conditions", "match", "value"),
    [
        ([Stop(stop_text="quick")], "stop_text", "quick"),
        ([Stop(stop_token_id=IDS[3])], "stop_token_id", IDS[3]),
        ([], "eos_token_id", EOS),
    ],
)
async def test_what_ended_an_output_is_named(inference, engine, conditions, match, value):
    engine.reply = lambda _, position: IDS[position] if position < 12 else EOS

    *_, last = await answers_of(inference.Generate(request(stopping=Stopping(max_tokens=40, conditions=conditions))))

    assert last.finished.reason == inference_pb2.FINISH_REASON_STOP
    assert (last.finished.stop_match.WhichOneof("match"), getattr(last.finished.stop_match, match)) == (match, value)


async def test_an_output_that_its_grammar_ended_names_no_token(inference, engine):
    engine.grammar_ends_after = 5

    *_, last = await answers_of(inference.Generate(request()))

    assert last.finished.reason == inference_pb2.FINISH_REASON_STOP
    assert not last.finished.HasField("stop_match")


@pytest.mark.parametrize(("kept", "ids", "text"), [(False, IDS[:3], TEXT[:3]), (True, IDS[:4], TEXT[:4])])
async def test_a_stop_token_is_in_the_output_only_if_it_is_wanted(inference, kept, ids, text):
    stopping = Stopping(max_tokens=40, conditions=[Stop(stop_token_id=IDS[3])], include_stop_in_output=kept)

    *tokens, last = await answers_of(inference.Generate(request(stopping=stopping)))

    assert [token.token_id for each in tokens for token in each.token.tokens] == ids
    assert "".join(each.token.text for each in tokens) == text
    assert last.usage.completion_tokens == 4


@pytest.mark.parametrize(("kept", "end"), [(False, TEXT.index("quick")), (True, TEXT.index("quick") + 5)])
async def test_a_stop_text_is_in_the_text_only_if_it_is_wanted(inference, kept, end):
    stopping = Stopping(max_tokens=40, conditions=[Stop(stop_text="quick")], include_stop_in_output=kept)

    *tokens, _ = await answers_of(inference.Generate(request(stopping=stopping)))

    assert "".join(each.token.text for each in tokens) == TEXT[:end]


async def test_requests_without_an_id_may_have_the_x_request_id_of_one_client_request(inference, engine):
    """A client may send it with every call that it makes for a request of its own."""
    engine.pause()
    calls = [inference.Generate(request(), metadata=(("x-request-id", "r1"),)) for _ in range(2)]
    await engine.until(lambda: len(engine.running) == 2)
    await engine.allow(None)

    first, second = [(await answers_of(call))[0].request_id for call in calls]

    assert first != second
    assert "r1" in (first, second)


async def test_a_cancelled_call_frees_its_request(inference, engine):
    engine.pause()
    call = inference.Generate(request(stopping=Stopping(max_tokens=400)))
    await engine.until(lambda: engine.running)
    await engine.allow(2)
    await call.read()

    call.cancel()

    await engine.until(lambda: engine.aborted)


async def test_keys_and_limits_are_those_of_the_port(serve_frontend):
    async with (
        serve_frontend(listen="127.0.0.1:0", api_key=("secret",)) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        code, _ = await refusal_of(answers_of(stub.Generate(request())))
        events = await answers_of(stub.Generate(request(), metadata=(("authorization", "Bearer secret"),)))

    assert code == grpc.StatusCode.UNAUTHENTICATED
    assert events
