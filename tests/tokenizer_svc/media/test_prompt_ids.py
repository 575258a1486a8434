"""Prompts of token ids with images: their placeholders are expanded as those of a text."""

import grpc
import pytest

from tests.pictures import picture
from tests.tokenizer_svc.media.conftest import item
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import tokenizer_pb2

PLACEHOLDERS = {
    "llava": "<image>",
    "smolvlm": "<image>",
    "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>",
}
MEDIA = [item(picture(90, 60)), item(picture(40, 120))]


@pytest.mark.parametrize("kind", PLACEHOLDERS)
async def test_a_prompt_of_ids_is_that_of_its_text(stub_of, kind):
    image = PLACEHOLDERS[kind]
    text = f"Compare {image} with {image}!"
    stub = await stub_of(kind)
    plain = await stub.Encode(tokenizer_pb2.EncodeRequest(texts=[text]))
    of_text = await stub.Encode(tokenizer_pb2.EncodeRequest(texts=[text], media=MEDIA))
    of_ids = await stub.Encode(tokenizer_pb2.EncodeRequest(token_ids=plain.encodings[0].token_ids, media=MEDIA))

    assert of_ids == of_text
    assert len(of_ids.encodings[0].mm_features) == 2


async def test_a_prompt_of_ids_is_truncated_beside_its_images(stub_of):
    stub = await stub_of("llava")
    plain = await stub.Encode(tokenizer_pb2.EncodeRequest(texts=["Some words before <image>"]))
    request = tokenizer_pb2.EncodeRequest(token_ids=plain.encodings[0].token_ids, media=MEDIA[:1], max_tokens=8)
    [encoding] = (await stub.Encode(request)).encodings
    request.max_tokens = 2
    with pytest.raises(grpc.aio.AioRpcError, match="would split or drop"):
        await stub.Encode(request)

    assert len(unpack_u32(encoding.token_ids)) == 8
    assert encoding.mm_features[0].offset + encoding.mm_features[0].length == 8


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"texts": ["a"], "media": MEDIA}, "leave texts out"),
        ({}, "leave texts out"),
        ({"media": MEDIA, "add_special_tokens": True}, "leave add_special_tokens and return_token_strings unset"),
        ({"media": MEDIA}, "Found fewer '<image>' placeholders"),
        ({"media": [item(b"no image")]}, "image"),
    ],
)
async def test_a_wrong_prompt_of_ids_is_refused(stub_of, fields, text):
    stub = await stub_of("llava")
    with pytest.raises(grpc.aio.AioRpcError, match=text) as refused:
        await stub.Encode(tokenizer_pb2.EncodeRequest(token_ids=pack_u32([1, 2]), **fields))

    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
