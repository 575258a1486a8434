"""Features of requests, items for the encoder and its answers, as messages."""

import pytest

from tests.engine_core_svc.media_values import feature
from tetrad.engine_core_svc.core.media import EncoderInput
from tetrad.engine_core_svc.core.media_wire import (
    decode_events,
    decode_inputs,
    decode_span,
    encode_items,
    encode_span,
)
from tetrad.services.errors import InvalidRequest, ModelError, Unsupported
from tetrad.services.message_size import BATCH_BYTES
from tetrad.services.rpc.status import to_status
from tetrad.v1 import types_pb2, worker_pb2


def test_a_place_keeps_all_fields_but_the_tensors():
    message = feature("a", 3, 6, num_embeds=4, is_embed=b"\1\1\0\0\1\1", grid=(1, 2, 2))

    span = decode_span(message)

    assert (span.identifier, span.modality, span.content_hash) == ("a", "image", "hash of a")
    assert (span.offset, span.end, span.num_embeds, span.grid) == (3, 9, 4, (1, 2, 2))
    assert span.size_bytes == 6 + 1 + 9
    message.ClearField("tensors")
    assert encode_span(span) == message


async def test_an_item_has_the_tensors_of_its_feature():
    message = feature("a", 3, 6)

    inputs = await decode_inputs([feature("b", 0, 2, tensors=False), message, feature("a", 20, 6, pixels=b"others")])

    assert list(inputs) == ["a"]
    (request,) = encode_items(inputs.values())
    (item,) = request.encoder_inputs.items
    assert (item.identifier, item.modality, item.num_embeds) == ("a", "image", 6)
    assert dict(item.tensors) == dict(message.tensors)
    assert item.ByteSize() <= inputs["a"].size_bytes <= item.ByteSize() + 300


async def test_all_items_of_a_request_are_decoded():
    features = [feature("a", 0, 2), feature("b", 2, 2, tensors=False), feature("a", 4, 2), feature("c", 6, 2)]

    assert list(await decode_inputs(features)) == ["a", "c"]


@pytest.mark.parametrize(
    ("identifier", "name", "num_axes"),
    [("ä" * 1000, "x", 1), ("a", "ä" * 1000, 1), ("a", "x", 1000)],
    ids=["id", "name", "axes"],
)
async def test_the_bytes_of_an_item_are_at_least_those_of_its_message(identifier, name, num_axes):
    message = feature(identifier, 0, 3, tensors=False)
    message.tensors[name].CopyFrom(types_pb2.Tensor(dtype=6, shape=[1 << 60] * num_axes + [0]))

    inputs = await decode_inputs([message])

    (request,) = encode_items(inputs.values())
    assert request.ByteSize() - 32 <= inputs[identifier].size_bytes <= request.ByteSize() + 1300


async def test_items_share_messages_up_to_a_size():
    sizes = {"a": BATCH_BYTES} | dict.fromkeys("bcdef", BATCH_BYTES // 2 - 500)
    inputs = await decode_inputs([feature(name, 0, 3, pixels=bytes(size)) for name, size in sizes.items()])

    requests = list(encode_items(inputs.values()))

    assert [[item.identifier for item in request.encoder_inputs.items] for request in requests] == [
        ["a"],
        ["b", "c"],
        ["d", "e"],
        ["f"],
    ]


def test_an_item_that_is_no_message_is_a_bug():
    with pytest.raises(TypeError, match="EncoderInput holds no message"):
        list(encode_items([EncoderInput(3)]))


def with_tensor(**fields):
    message = feature("a", 0, 3)
    message.tensors["pixel_values"].CopyFrom(types_pb2.Tensor(**fields))
    return message


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"dtype": 6, "shape": [2, 3], "inline": b"12345"}, InvalidRequest, r"'pixel_values' of shape \[2, 3\] cannot have 5"),
        ({"dtype": 1, "shape": [2], "inline": b"1234"}, InvalidRequest, "cannot have 4 bytes"),
        ({"dtype": 6, "shape": [-1, -4], "inline": b"1234"}, InvalidRequest, "cannot have 4 bytes"),
        (
            {"dtype": 0, "shape": [1], "inline": b"1"},
            Unsupported,
            "has the type unspecified; the types are float32, int64, int32, uint8, bool",
        ),
        ({"dtype": 8, "shape": [1], "inline": b"1"}, Unsupported, "has the type float8_e4m3"),
        ({"dtype": 2, "shape": [1], "inline": b"12"}, Unsupported, "has the type float16; the types are float32"),
        ({"dtype": 3, "shape": [1], "inline": b"12"}, Unsupported, "has the type bfloat16"),
        ({"dtype": 10, "shape": [1], "inline": b"12"}, Unsupported, "has the type int16"),
        (
            {"dtype": 6, "shape": [1], "shared_memory": types_pb2.SharedMemoryRef(name="x")},
            Unsupported,
            "does not support shared_memory of the tensor 'pixel_values'; send it inline",
        ),
    ],
)
async def test_a_tensor_that_is_not_what_it_says_is_refused(fields, error, text):
    with pytest.raises(error, match=text) as refused:
        await decode_inputs([with_tensor(**fields)])
    assert refused.value.field == "mm_features"


@pytest.mark.parametrize(("dtype", "num_bytes"), [(1, 4), (4, 8), (5, 4), (6, 1), (7, 1)])
async def test_tensors_of_plain_types_are_taken(dtype, num_bytes):
    assert await decode_inputs([with_tensor(dtype=dtype, shape=[3, 1], inline=bytes(3 * num_bytes))])


async def test_a_tensor_without_axes_has_one_element():
    assert await decode_inputs([with_tensor(dtype=1, inline=bytes(4))])


async def test_a_tensor_without_elements_is_taken():
    assert await decode_inputs([with_tensor(dtype=6, shape=[0, 4])])


def test_layouts_are_refused():
    with pytest.raises(Unsupported, match="layouts"):
        decode_span(types_pb2.MultiModalFeature(layouts={"pixel_values": types_pb2.FIELD_LAYOUT_FLAT}))


def test_answers_have_the_errors_of_failed_items():
    message = worker_pb2.EncoderEvents(encoded=["a", "b"])
    message.failures.add(identifier="c", error=to_status(ModelError("It has no pixels.")))

    events = decode_events(message)

    assert events.encoded == ("a", "b")
    assert {name: error.message for name, error in events.failures.items()} == {"c": "It has no pixels."}
