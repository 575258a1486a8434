"""openengine.v1.Inference: requests that are not accepted, unknown fields and metadata, and failures of accepted requests."""

import grpc
import pytest
from google.protobuf import struct_pb2

from tests.frontend.api.gateways.calls import answers_of, refusal_of
from tests.frontend.api.gateways.requests import openengine_request as request
from tetrad.openengine_api import common_pb2, control_pb2, inference_pb2, inference_pb2_grpc
from tetrad.services.errors import InternalError, Overloaded
from tetrad.services.rpc.channel import open_channel

Guided = inference_pb2.GuidedDecoding
Kv = inference_pb2.KvOptions
Response = inference_pb2.ResponseOptions
Sampling = inference_pb2.SamplingParams
Select = inference_pb2.CandidateTokenSelection
Stop = inference_pb2.StopCondition
Stopping = inference_pb2.StoppingOptions
Tokens = inference_pb2.TokenIds


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
async def test_a_request_that_is_not_accepted_ends_with_a_status_and_the_field(inference, engine, fields, code, field):
    assert await refusal_of(answers_of(inference.Generate(request(**fields)))) == (code, field)
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
async def test_a_field_of_another_revision_is_refused_by_its_number(inference, path, field):
    message = request(sampling=Sampling(), stopping=Stopping(conditions=[Stop(stop_text="a")]))
    inner = message
    for name in path:
        inner = getattr(inner, name)
    inner = inner[0] if path[-1:] == ("conditions",) else inner
    inner.MergeFromString(bytes([15 << 3, 1]))

    assert await refusal_of(answers_of(inference.Generate(message))) == (grpc.StatusCode.INVALID_ARGUMENT, field)


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
async def test_metadata_of_the_protocol_that_cannot_be_used_is_refused(inference, key, values):
    call = inference.Generate(request(), metadata=[(key, value) for value in values])

    assert await refusal_of(answers_of(call)) == (grpc.StatusCode.INVALID_ARGUMENT, key)


async def test_metadata_of_others_is_not_looked_at(inference):
    assert await answers_of(inference.Generate(request(), metadata=(("tenant", "a"), ("tenant", "b"))))


async def test_an_open_request_keeps_its_id_for_itself(inference, engine):
    engine.pause()
    first = inference.Generate(request(request_id="r1"))
    await engine.until(lambda: engine.running)

    refused = await refusal_of(answers_of(inference.Generate(request(request_id="r1"))))
    await engine.allow(None)

    assert refused == (grpc.StatusCode.ALREADY_EXISTS, "request_id")
    assert (await answers_of(first))[-1].HasField("finished")
    assert await answers_of(inference.Generate(request(request_id="r1")))


async def test_the_failure_of_an_accepted_request_is_its_last_event(inference, engine):
    engine.reject = lambda _: Overloaded("full", retry_after_s=2.5, field="queue")

    [event] = await answers_of(inference.Generate(request(request_id="r1")))

    error = event.error
    assert (event.request_id, error.code, error.message) == ("r1", common_pb2.ERROR_CODE_OVERLOADED, "full")
    assert (error.retryable, error.retry_after_ms) == (True, 2500)
    assert dict(error.details) == {"tetrad.reason": "OVERLOADED", "tetrad.field": "queue"}
    assert not event.HasField("usage")


async def test_a_failure_that_a_retry_does_not_help_says_so(inference, engine):
    engine.reject = lambda _: InternalError("broken")

    [event] = await answers_of(inference.Generate(request()))

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

        *tokens, last = await answers_of(call)

    assert (last.error.code, last.error.retryable) == (common_pb2.ERROR_CODE_CANCELLED, False)
    assert last.error.details["tetrad.reason"] == "DEADLINE_EXCEEDED"
    assert last.usage.completion_tokens == sum(len(each.token.tokens) for each in tokens)
