"""Requests of the engine core's clients: every field of the message, read as a submission."""

import json

import pytest

from tests.engine_core_svc.wire_values import HEADERS
from tetrad.engine_core_svc.core.adapter import LoraRef
from tetrad.engine_core_svc.core.prompt_embeds import PromptEmbeds
from tetrad.engine_core_svc.core.request import RepetitionRule, StopRules
from tetrad.engine_core_svc.core.wire import PoolingMessage, sampling_of
from tetrad.engine_core_svc.engine.submission_wire import SharedSampling, decode_submission
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.request_context import RequestContext
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import engine_core_pb2, types_pb2


def submitted(**params):
    """Return the submission of a request with these sampling parameters and nothing else."""
    return decode_submission(engine_core_pb2.EngineCoreRequest(sampling_params=types_pb2.SamplingParams(**params)))


def test_a_request_is_read_whole():
    params = types_pb2.SamplingParams(max_tokens=5, min_tokens=2, stop_token_ids=[7, 8], temperature=0.5)
    message = engine_core_pb2.EngineCoreRequest(
        request_id="r",
        handle=3,
        prompt_token_ids=pack_u32([1, 2]),
        resumed_output_token_ids=pack_u32([9]),
        sampling_params=params,
        eos_token_id=4,
        priority=-6,
        arrival_time_unix_nanos=1_500_000_000,
        cache_salt="salt",
        trace_headers=HEADERS,
    )

    read = decode_submission(message)

    assert (read.request_id, read.handle, read.prompt_token_ids, read.output_token_ids) == ("r", 3, [1, 2], [9])
    assert (read.priority, read.arrival_time, read.cache_salt) == (-6, 1.5, "salt")
    assert read.stop == StopRules(max_tokens=5, min_tokens=2, eos_token_id=4, stop_token_ids=frozenset({7, 8}))
    assert sampling_of(read.payload.params) == params
    assert (read.payload.eos_token_id, read.payload.context, read.context) == (
        4,
        read.context,
        RequestContext.from_headers(HEADERS),
    )
    assert (read.resumed, read.constraint, read.skip_reading_prefix_cache) == (True, None, False)


def test_what_a_request_does_not_say_is_not_made_up():
    read = submitted()

    assert read.stop == StopRules()
    assert (read.payload.eos_token_id, read.resumed, read.constraint, read.output_token_ids) == (None, False, None, [])


def test_a_request_says_itself_that_it_was_accepted_before():
    message = engine_core_pb2.EngineCoreRequest(sampling_params=types_pb2.SamplingParams(), resumed=True)

    assert decode_submission(message).resumed


def test_eos_that_is_ignored_stops_nothing_but_the_worker_knows_it():
    message = engine_core_pb2.EngineCoreRequest(sampling_params=types_pb2.SamplingParams(ignore_eos=True), eos_token_id=4)

    read = decode_submission(message)

    assert (read.stop.eos_token_id, read.payload.eos_token_id) == (None, 4)


@pytest.mark.parametrize(
    ("rule", "read"),
    [
        ((4, 2, 3), RepetitionRule(4, 2, 3)),
        ((1, 0, 2), RepetitionRule(1, 0, 2)),
        ((4, 2, 1), None),
        ((0, 0, 3), None),
    ],
)
def test_repetition_needs_a_pattern_and_two_of_it(rule, read):
    most, least, count = rule
    params = types_pb2.RepetitionDetection(max_pattern_size=most, min_pattern_size=least, min_count=count)

    assert submitted(repetition_detection=params).stop.repetition == read


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "sampling_params"),
        (
            {"sampling_params": types_pb2.SamplingParams(), "lora_request": types_pb2.LoraRequest(is_3d_lora_weight=True)},
            "is_3d_lora_weight",
        ),
        ({"sampling_params": types_pb2.SamplingParams(), "prompt_embeds": types_pb2.Tensor()}, "prompt_embeds"),
        (
            {
                "sampling_params": types_pb2.SamplingParams(),
                "mm_features": [types_pb2.MultiModalFeature(layouts={"pixel_values": types_pb2.FIELD_LAYOUT_FLAT})],
            },
            "layouts",
        ),
    ],
)
def test_what_this_engine_core_cannot_do_is_refused_by_its_field(fields, field):
    with pytest.raises((InvalidRequest, Unsupported), match=field) as refused:
        decode_submission(engine_core_pb2.EngineCoreRequest(**fields))

    assert refused.value.field == field


def test_a_constraint_is_read_whole_and_kept_from_the_worker():
    outputs = types_pb2.StructuredOutputs(
        regex="a+",
        disable_any_whitespace=True,
        disable_additional_properties=True,
        whitespace_pattern=" ?",
        opening_token_ids=[1],
        start_after_token_ids=[2, 3],
    )

    read = submitted(
        structured_outputs=outputs, ignore_eos=True, min_tokens=4, stop_token_ids=[5], allowed_token_ids=[6, 7], temperature=0.5
    )

    language = Language("regex", "a+", disable_any_whitespace=True, disable_additional_properties=True, whitespace_pattern=" ?")
    assert read.constraint == Constraint(
        language, (1,), (2, 3), ignore_eos=True, min_tokens=4, stop_token_ids=(5,), allowed_token_ids=(6, 7)
    )
    assert not sampling_of(read.payload.params).HasField("structured_outputs")
    assert sampling_of(read.payload.params).temperature == 0.5


@pytest.mark.parametrize(
    ("fields", "language"),
    [
        ({"json_schema": "{}"}, Language("json_schema", "{}")),
        ({"json_object": True}, Language("json_object", "")),
        ({"choice": types_pb2.ChoiceList(choices=["a", "b"])}, Language("choice", json.dumps(["a", "b"]))),
        ({"grammar": "root ::= 'a'"}, Language("grammar", "root ::= 'a'")),
        ({"regex": "a", "start_after_token_ids": [1]}, Language("regex", "a")),
    ],
    ids=["schema", "object", "choice", "grammar", "start"],
)
def test_each_kind_of_constraint_has_its_text_and_no_options_unless_given(fields, language):
    constraint = submitted(structured_outputs=types_pb2.StructuredOutputs(**fields)).constraint

    assert constraint.language == language


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "must have exactly one constraint"),
        ({"json_object": False}, "must have exactly one constraint"),
        ({"regex": "a", "opening_token_ids": [1]}, "opening_token_ids needs start_after_token_ids"),
    ],
)
def test_a_constraint_that_says_nothing_is_refused(fields, text):
    with pytest.raises(InvalidRequest, match=text):
        submitted(structured_outputs=types_pb2.StructuredOutputs(**fields))


def test_the_number_of_the_clients_call_is_read():
    params = types_pb2.SamplingParams()
    generating = engine_core_pb2.EngineCoreRequest(sampling_params=params, call_number=7)
    pooling = engine_core_pb2.EngineCoreRequest(pooling_params=types_pb2.PoolingParams(), call_number=8)

    assert [decode_submission(message).call_number for message in (generating, pooling)] == [7, 8]


def test_a_pooling_request_is_read_whole():
    params = types_pb2.PoolingParams(task="embed", dimensions=5)
    message = engine_core_pb2.EngineCoreRequest(
        request_id="r",
        handle=3,
        prompt_token_ids=pack_u32([1, 2]),
        pooling_params=params,
        priority=-6,
        arrival_time_unix_nanos=1_500_000_000,
        timeout_nanos=2_500_000_000,
        cache_salt="salt",
        trace_headers=HEADERS,
        resumed=True,
    )

    read = decode_submission(message)

    assert (read.request_id, read.handle, read.prompt_token_ids, read.output_token_ids) == ("r", 3, [1, 2], [])
    assert (read.priority, read.arrival_time, read.timeout_s, read.cache_salt) == (-6, 1.5, 2.5, "salt")
    assert (read.stop, read.constraint, read.resumed) == (StopRules(max_tokens=0), None, True)
    assert (read.pools, read.pools_tokens, read.skip_reading_prefix_cache) == (True, False, False)
    assert isinstance(read.payload.params, PoolingMessage)
    assert (read.payload.params.message, read.payload.context) == (params, RequestContext.from_headers(HEADERS))
    assert read.context == read.payload.context


@pytest.mark.parametrize(
    ("params", "read"),
    [
        ({"task": "token_embed"}, (True, True)),
        ({"task": "token_classify", "skip_reading_prefix_cache": False}, (True, True)),
        ({"task": "embed", "skip_reading_prefix_cache": True}, (False, True)),
        ({"task": "embed", "skip_reading_prefix_cache": False}, (False, False)),
    ],
)
def test_an_answer_for_all_tokens_needs_all_of_them_computed(params, read):
    submission = decode_submission(engine_core_pb2.EngineCoreRequest(pooling_params=types_pb2.PoolingParams(**params)))

    assert (submission.pools_tokens, submission.skip_reading_prefix_cache) == read


def test_a_pooling_request_with_embeddings_is_refused_by_the_field():
    message = engine_core_pb2.EngineCoreRequest(pooling_params=types_pb2.PoolingParams(), prompt_embeds=types_pb2.Tensor())

    with pytest.raises(Unsupported, match="prompt_embeds is not supported for pooling requests") as refused:
        decode_submission(message)
    assert refused.value.field == "prompt_embeds"


def test_the_adapter_of_a_pooling_request_is_read():
    lora = types_pb2.LoraRequest(name="a", id=7, path="/a")

    read = decode_submission(engine_core_pb2.EngineCoreRequest(pooling_params=types_pb2.PoolingParams(), lora_request=lora))

    assert read.lora == LoraRef("a", 7, "/a")


def test_the_adapter_the_seed_and_the_prediction_of_a_request_are_read():
    message = engine_core_pb2.EngineCoreRequest(
        sampling_params=types_pb2.SamplingParams(),
        lora_request=types_pb2.LoraRequest(name="a", id=7, path="/a", load_inplace=True, base_model_name="b"),
        seed=0,
        predicted_token_ids=pack_u32([4, 5]),
        timeout_nanos=500_000_000,
    )

    read = decode_submission(message)

    assert read.lora == LoraRef("a", 7, "/a", load_inplace=True, base_model_name="b")
    assert (read.payload.seed, list(read.predicted_token_ids), read.timeout_s) == (0, [4, 5], 0.5)
    assert (submitted().payload.seed, submitted().lora, submitted().timeout_s) == (None, None, None)


def embedded(shape, num_bytes, *, dtype=types_pb2.DATA_TYPE_FLOAT32, flags=b"\x01\x00\x00"):
    tensor = types_pb2.Tensor(dtype=dtype, shape=shape, inline=bytes(num_bytes))
    params, ids = types_pb2.SamplingParams(), pack_u32([1, 2, 3])
    return engine_core_pb2.EngineCoreRequest(
        sampling_params=params, prompt_token_ids=ids, prompt_embeds=tensor, prompt_is_token_ids=flags
    )  # fmt: skip


def test_embeddings_of_a_prompt_are_read():
    embeds = decode_submission(embedded([2, 5], 40)).payload.prompt_embeds

    assert embeds == PromptEmbeds(bytes(40), 5, b"\x01\x00\x00")
    assert decode_submission(embedded([3, 5], 60, flags=b"")).payload.prompt_embeds.is_token_ids == bytes(3)


@pytest.mark.parametrize(
    "message",
    [
        embedded([2, 5], 40, dtype=types_pb2.DATA_TYPE_BFLOAT16),
        embedded([2, 5, 1], 40),
        embedded([2, 5], 39),
        embedded([0, 5], 0),
        embedded([2, 0], 0),
        embedded([1, 5], 20),
        embedded([2, 5], 40, flags=b"\x01\x00\x00\x01"),
    ],
)
def test_embeddings_that_disagree_with_the_prompt_are_refused(message):
    with pytest.raises(InvalidRequest, match=r"prompt_embeds|prompt_is_token_ids"):
        decode_submission(message)


def test_parameters_beside_a_request_are_read_by_their_index():
    params = [types_pb2.SamplingParams(max_tokens=number) for number in (5, 6)]
    shared = SharedSampling(params)
    messages = [engine_core_pb2.EngineCoreRequest(sampling_params_index=index) for index in (1, 0, 1)]

    read = [decode_submission(message, shared) for message in messages]

    assert [each.stop.max_tokens for each in read] == [6, 5, 6]
    assert read[0].payload.params is read[2].payload.params
    with pytest.raises(InvalidRequest, match="sampling_params_index is 2, but the message has 2") as refused:
        decode_submission(engine_core_pb2.EngineCoreRequest(sampling_params_index=2), shared)
    assert refused.value.field == "sampling_params_index"
    with pytest.raises(InvalidRequest, match="the message has 0"):
        decode_submission(engine_core_pb2.EngineCoreRequest(sampling_params_index=0))
