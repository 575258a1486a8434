"""openengine.v1.Inference: events of a request, translation of its fields, refusals, and errors before and after acceptance."""

import grpc
import pytest
from google.protobuf import struct_pb2

from tests.frontend.fakes import EOS, TEXT
from tetrad.frontend.api.http.sse import rendering
from tetrad.openengine_api import common_pb2, control_pb2, inference_pb2, inference_pb2_grpc
from tetrad.services.errors import InternalError, Overloaded
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import unpack_u32
from tetrad.services.rpc.status import from_rpc_error

IDS = list(TEXT.encode())
Guided = inference_pb2.GuidedDecoding
Kv = inference_pb2.KvOptions
Response = inference_pb2.ResponseOptions
Sampling = inference_pb2.SamplingParams
Select = inference_pb2.CandidateTokenSelection
Stop = inference_pb2.StopCondition
Stopping = inference_pb2.StoppingOptions
Tokens = inference_pb2.TokenIds


@pytest.fixture
def stub(channel):
    return inference_pb2_grpc.InferenceStub(channel)


def request(**fields):
    defaults = {"token_ids": Tokens(ids=[1, 2]), "stopping": Stopping(max_tokens=9)}
    if "prompt" in fields:
        del defaults["token_ids"]
    return inference_pb2.GenerateRequest(**(defaults | fields))


async def events_of(call):
    return [response async for response in call]


async def refusal_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events_of(call)
    return caught.value.code(), from_rpc_error(caught.value).field


async def test_a_request_has_tokens_and_text_and_ends_with_its_usage(stub):
    *tokens, last = await events_of(stub.Generate(request(request_id="r1")))

    assert [token.token_id for each in tokens for token in each.token.tokens] == IDS[:9]
    assert "".join(each.token.text for each in tokens) == TEXT[:9]
    assert {(each.request_id, each.WhichOneof("event"), each.HasField("usage")) for each in tokens} == {("r1", "token", False)}
    assert all(each.token.HasField("output_index") for each in tokens)
    assert (last.finished.output_index, last.finished.reason) == (0, inference_pb2.FINISH_REASON_LENGTH)
    assert last.usage == inference_pb2.Usage(prompt_tokens=2, completion_tokens=9, total_tokens=11, cached_prompt_tokens=0)


async def test_a_request_without_an_id_is_given_one(stub):
    events = await events_of(stub.Generate(request(prompt="hi")))

    assert len({each.request_id for each in events}) == 1
    assert events[0].request_id


async def test_each_output_finishes_once_and_the_last_one_has_the_usage_of_all(stub):
    events = await events_of(stub.Generate(request(sampling=Sampling(num_sequences=3))))

    finished = [each for each in events if each.HasField("finished")]
    assert sorted(each.finished.output_index for each in finished) == [0, 1, 2]
    assert [each.HasField("usage") for each in finished] == [False, False, True]
    assert events[-1].usage.completion_tokens == 27


async def test_the_engine_is_asked_for_what_the_message_says(stub, engine):
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

    await events_of(stub.Generate(message, metadata=metadata))

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
        await events_of(stub.Generate(inference_pb2.GenerateRequest(prompt="hi")))
        await events_of(stub.Generate(request(sampling=Sampling(temperature=0.0))))

    absent, zero = (each.sampling_params for each in engine.requests)
    assert (absent.temperature, absent.top_k, absent.max_tokens) == (0.25, 7, 510)
    assert zero.temperature == 0.0


@pytest.mark.parametrize(("given", "used"), [(2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 2, -2), (2**64 - 1, 0)])
async def test_a_seed_has_64_bits_and_never_stands_for_a_random_one(stub, engine, given, used):
    await events_of(stub.Generate(request(sampling=Sampling(seed=given))))

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
async def test_constraints_by_their_kind(stub, engine, guided, field, value):
    await events_of(stub.Generate(request(guided=guided)))

    assert getattr(engine.requests[0].sampling_params.structured_outputs, field) == value


async def test_a_constraint_of_choices(stub, engine):
    await events_of(stub.Generate(request(guided=Guided(choice=inference_pb2.ChoiceConstraint(choices=["a", "b"])))))

    assert list(engine.requests[0].sampling_params.structured_outputs.choice.choices) == ["a", "b"]


async def test_an_adapter_is_named_by_a_field_of_its_own(engine, serve_frontend):
    engine.supports_lora = True
    settings = {"lora_modules": ("sql=/a",), "engine_admin_targets": ()}
    async with serve_frontend(listen="127.0.0.1:0", **settings) as frontend, open_channel(frontend.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        await events_of(stub.Generate(request(lora_name="sql")))
        refused = await refusal_of(stub.Generate(request(model="sql")))

    assert engine.requests[0].lora_request.path == "/a"
    assert refused == (grpc.StatusCode.NOT_FOUND, "model")


@pytest.mark.parametrize("num_many", [1, 4096], ids=["in the side thread", "in the event loop"])
async def test_log_probabilities_of_prompt_and_output(stub, monkeypatch, num_many):
    monkeypatch.setattr(rendering, "_MANY", num_many)
    options = Response(
        return_prompt_logprobs=True,
        prompt_candidates=Select(top_n=1),
        return_output_logprobs=True,
        output_candidates=Select(top_n=2),
    )
    message = request(token_ids=Tokens(ids=[1, 2, 3]), response=options, stopping=Stopping(max_tokens=1))

    prompt, token, _ = await events_of(stub.Generate(message))

    first, second, third = prompt.prompt.tokens
    assert (first.token_id, first.HasField("logprob"), first.HasField("rank"), len(first.candidates)) == (1, False, False, 0)
    assert (second.token_id, second.logprob, second.rank) == (2, -0.5, 1)
    assert [each.token_id for each in third.candidates] == [3]
    [made] = token.token.tokens
    assert (made.token_id, made.token, made.logprob, made.rank) == (IDS[0], TEXT[0], -0.5, 1)
    assert [(each.token_id, each.logprob) for each in made.candidates] == [(IDS[0], -0.5), (IDS[0] + 1, -1.5)]


async def test_log_probabilities_without_a_selection_have_no_candidates(stub):
    [token, _] = await events_of(
        stub.Generate(request(response=Response(return_output_logprobs=True), stopping=Stopping(max_tokens=1)))
    )

    assert (token.token.tokens[0].logprob, len(token.token.tokens[0].candidates)) == (-0.5, 0)


async def test_chosen_candidates_are_asked_for_by_their_ids(stub, engine):
    options = Response(return_output_logprobs=True, output_candidates=Select(token_ids=Tokens(ids=[5, IDS[0]])))

    [token, _] = await events_of(stub.Generate(request(response=options, stopping=Stopping(max_tokens=1))))

    assert list(engine.requests[0].sampling_params.logprob_token_ids) == [5, IDS[0]]
    assert [each.token_id for each in token.token.tokens[0].candidates] == [IDS[0]]  # the fake has no others


async def test_all_candidates_need_a_server_without_a_limit(stub, serve_frontend):
    options = Response(return_output_logprobs=True, output_candidates=Select(all=inference_pb2.AllCandidates()))
    message = request(response=options, stopping=Stopping(max_tokens=1))

    assert await refusal_of(stub.Generate(message)) == (grpc.StatusCode.INVALID_ARGUMENT, "logprobs")
    async with (
        serve_frontend(listen="127.0.0.1:0", max_logprobs=-1) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        [token, _] = await events_of(inference_pb2_grpc.InferenceStub(channel).Generate(message))
    assert len(token.token.tokens[0].candidates) == 128


async def test_prompt_log_probabilities_begin_where_they_are_wanted(stub):
    options = Response(return_prompt_logprobs=True, prompt_logprob_start=2)
    message = request(token_ids=Tokens(ids=[1, 2, 3]), response=options)

    prompt, *_ = await events_of(stub.Generate(message))

    assert [each.HasField("logprob") for each in prompt.prompt.tokens] == [False, False, True]


@pytest.mark.parametrize(
    ("conditions", "match", "value"),
    [
        ([Stop(stop_text="quick")], "stop_text", "quick"),
        ([Stop(stop_token_id=IDS[3])], "stop_token_id", IDS[3]),
        ([], "eos_token_id", EOS),
    ],
)
async def test_what_ended_an_output_is_named(stub, engine, conditions, match, value):
    engine.reply = lambda _, position: IDS[position] if position < 12 else EOS

    *_, last = await events_of(stub.Generate(request(stopping=Stopping(max_tokens=40, conditions=conditions))))

    assert last.finished.reason == inference_pb2.FINISH_REASON_STOP
    assert (last.finished.stop_match.WhichOneof("match"), getattr(last.finished.stop_match, match)) == (match, value)


async def test_an_output_that_its_grammar_ended_names_no_token(stub, engine):
    engine.grammar_ends_after = 5

    *_, last = await events_of(stub.Generate(request()))

    assert last.finished.reason == inference_pb2.FINISH_REASON_STOP
    assert not last.finished.HasField("stop_match")


@pytest.mark.parametrize(("kept", "ids", "text"), [(False, IDS[:3], TEXT[:3]), (True, IDS[:4], TEXT[:4])])
async def test_a_stop_token_is_in_the_output_only_if_it_is_wanted(stub, kept, ids, text):
    stopping = Stopping(max_tokens=40, conditions=[Stop(stop_token_id=IDS[3])], include_stop_in_output=kept)

    *tokens, last = await events_of(stub.Generate(request(stopping=stopping)))

    assert [token.token_id for each in tokens for token in each.token.tokens] == ids
    assert "".join(each.token.text for each in tokens) == text
    assert last.usage.completion_tokens == 4


@pytest.mark.parametrize(("kept", "end"), [(False, TEXT.index("quick")), (True, TEXT.index("quick") + 5)])
async def test_a_stop_text_is_in_the_text_only_if_it_is_wanted(stub, kept, end):
    stopping = Stopping(max_tokens=40, conditions=[Stop(stop_text="quick")], include_stop_in_output=kept)

    *tokens, _ = await events_of(stub.Generate(request(stopping=stopping)))

    assert "".join(each.token.text for each in tokens) == TEXT[:end]


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"model": "x"}, grpc.StatusCode.NOT_FOUND, "model"),
        ({"lora_name": "x"}, grpc.StatusCode.NOT_FOUND, "lora_name"),
        ({"media": [inference_pb2.MediaItem()]}, grpc.StatusCode.INVALID_ARGUMENT, "media"),
        ({"media_options": struct_pb2.Struct()}, grpc.StatusCode.INVALID_ARGUMENT, "media_options"),
        ({"extra": struct_pb2.Struct()}, grpc.StatusCode.INVALID_ARGUMENT, "extra"),
        ({"kv": Kv(session=common_pb2.KvSessionRef())}, grpc.StatusCode.INVALID_ARGUMENT, "session"),
        ({"token_ids": None}, grpc.StatusCode.INVALID_ARGUMENT, "input"),
        ({"sampling": Sampling(temperature=3.0)}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"sampling": Sampling(num_sequences=0)}, grpc.StatusCode.INVALID_ARGUMENT, "num_sequences"),
        ({"stopping": Stopping(conditions=[Stop()])}, grpc.StatusCode.INVALID_ARGUMENT, "stopping.conditions"),
        ({"guided": Guided()}, grpc.StatusCode.INVALID_ARGUMENT, "guided"),
        ({"guided": Guided(regex="a", backend="outlines")}, grpc.StatusCode.INVALID_ARGUMENT, "guided.backend"),
        ({"response": Response(output_candidates=Select(top_n=1))}, grpc.StatusCode.INVALID_ARGUMENT, "output_candidates"),
        ({"response": Response(prompt_candidates=Select(top_n=1))}, grpc.StatusCode.INVALID_ARGUMENT, "prompt_candidates"),
        ({"response": Response(prompt_logprob_start=1)}, grpc.StatusCode.INVALID_ARGUMENT, "prompt_logprob_start"),
        (
            {"response": Response(return_prompt_logprobs=True, prompt_candidates=Select(token_ids=Tokens(ids=[1])))},
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt_candidates.token_ids",
        ),
        (
            {"response": Response(return_output_logprobs=True, output_candidates=Select(token_ids=Tokens()))},
            grpc.StatusCode.INVALID_ARGUMENT,
            "output_candidates.token_ids",
        ),
        ({"request_id": "no spaces"}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
    ],
)
async def test_a_request_that_is_not_accepted_ends_with_a_status_and_the_field(stub, engine, fields, code, field):
    assert await refusal_of(stub.Generate(request(**fields))) == (code, field)
    assert not engine.requests


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (Kv, {"session": 1, "bypass_prefix_cache": 2, "cache_salt": 3}),
        (inference_pb2.GenerateRequest, {"lora_name": 11, "extra": 12, "media_options": 14}),
        (control_pb2.ModelInfo, {"max_output_tokens": 5, "tokenizer": 11, "generation": 22, "tool_call_parser": 26}),
        (control_pb2.ServerInfo, {"schema_revision": 8, "capacity": 11}),
    ],
)
def test_fields_that_revisions_number_differently_have_the_numbers_of_revision_3(kind, numbers):
    assert {name: kind.DESCRIPTOR.fields_by_name[name].number for name in numbers} == numbers


@pytest.mark.parametrize(
    ("path", "field"), [((), "15"), (("sampling",), "sampling.15"), (("stopping", "conditions"), "stopping.conditions.15")]
)
async def test_a_field_of_another_revision_is_refused_by_its_number(stub, path, field):
    message = request(sampling=Sampling(), stopping=Stopping(conditions=[Stop(stop_text="a")]))
    inner = message
    for name in path:
        inner = getattr(inner, name)
    inner = inner[0] if path[-1:] == ("conditions",) else inner
    inner.MergeFromString(bytes([15 << 3, 1]))

    assert await refusal_of(stub.Generate(message)) == (grpc.StatusCode.INVALID_ARGUMENT, field)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("openengine-priority", ["one"]),
        ("openengine-priority", [str(2**31)]),
        ("openengine-priority", ["1", "1"]),
        ("openengine-priority", ["--1"]),
        ("openengine-target-dp-rank", ["-1"]),
        ("openengine-target-dp-rank", ["9" * 5000]),
        ("openengine-routing-key", ["tenant"]),
        ("openengine-unheard-of", ["1"]),
    ],
)
async def test_metadata_of_the_protocol_that_cannot_be_used_is_refused(stub, key, values):
    call = stub.Generate(request(), metadata=[(key, value) for value in values])

    assert await refusal_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, key)


async def test_metadata_of_others_is_not_looked_at(stub):
    assert await events_of(stub.Generate(request(), metadata=(("tenant", "a"), ("tenant", "b"))))


async def test_requests_without_an_id_may_have_the_x_request_id_of_one_client_request(stub, engine):
    """A client may send it with every call that it makes for a request of its own."""
    engine.pause()
    calls = [stub.Generate(request(), metadata=(("x-request-id", "r1"),)) for _ in range(2)]
    await engine.until(lambda: len(engine.running) == 2)
    await engine.allow(None)

    first, second = [(await events_of(call))[0].request_id for call in calls]

    assert first != second
    assert "r1" in (first, second)


async def test_an_open_request_keeps_its_id_for_itself(stub, engine):
    engine.pause()
    first = stub.Generate(request(request_id="r1"))
    await engine.until(lambda: engine.running)

    refused = await refusal_of(stub.Generate(request(request_id="r1")))
    await engine.allow(None)

    assert refused == (grpc.StatusCode.ALREADY_EXISTS, "request_id")
    assert (await events_of(first))[-1].HasField("finished")
    assert await events_of(stub.Generate(request(request_id="r1")))


async def test_the_failure_of_an_accepted_request_is_its_last_event(stub, engine):
    engine.reject = lambda _: Overloaded("full", retry_after_s=2.5, field="queue")

    [event] = await events_of(stub.Generate(request(request_id="r1")))

    error = event.error
    assert (event.request_id, error.code, error.message) == ("r1", common_pb2.ERROR_CODE_OVERLOADED, "full")
    assert (error.retryable, error.retry_after_ms) == (True, 2500)
    assert dict(error.details) == {"tetrad.reason": "OVERLOADED", "tetrad.field": "queue"}
    assert not event.HasField("usage")


async def test_a_failure_that_a_retry_does_not_help_says_so(stub, engine):
    engine.reject = lambda _: InternalError("broken")

    [event] = await events_of(stub.Generate(request()))

    assert (event.error.code, event.error.retryable) == (common_pb2.ERROR_CODE_INTERNAL, False)
    assert not event.error.HasField("retry_after_ms")


async def test_an_accepted_request_whose_time_is_over_ends_with_an_event_and_its_usage(engine, serve_frontend):
    engine.pause()
    async with (
        serve_frontend(listen="127.0.0.1:0", request_timeout_s=1.0) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        call = inference_pb2_grpc.InferenceStub(channel).Generate(request())
        await engine.until(lambda: engine.running)
        await engine.take(2)

        *tokens, last = await events_of(call)

    assert (last.error.code, last.error.retryable) == (common_pb2.ERROR_CODE_CANCELLED, False)
    assert last.error.details["tetrad.reason"] == "DEADLINE_EXCEEDED"
    assert last.usage.completion_tokens == sum(len(each.token.tokens) for each in tokens)


async def test_a_cancelled_call_frees_its_request(stub, engine):
    engine.pause()
    call = stub.Generate(request(stopping=Stopping(max_tokens=400)))
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
        code, _ = await refusal_of(stub.Generate(request()))
        events = await events_of(stub.Generate(request(), metadata=(("authorization", "Bearer secret"),)))

    assert code == grpc.StatusCode.UNAUTHENTICATED
    assert events
