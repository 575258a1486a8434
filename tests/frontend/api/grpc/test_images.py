"""Images over gRPC: files, URLs and names, in conversations and in prompts of text."""

import grpc
import pytest

from tests.frontend.fakes.images import IMAGES, PLACEHOLDER
from tetrad.services.models.media_embeds import split_embeds
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import inference_pb2 as pb
from tetrad.v1 import inference_pb2_grpc, types_pb2


@pytest.fixture
async def stub(seeing):
    async with open_channel(seeing.grpc_address) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


def chat(*parts, **fields):
    message = pb.ChatMessage(role="user", content_parts=parts)
    return pb.ChatRequest(messages=[message], sampling_params=types_pb2.SamplingParams(max_tokens=2), **fields)


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in call:
            pass
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return refused.value.details()


@pytest.mark.parametrize(
    "media",
    [pb.MediaPart(data=b"cats", media_type="image/png"), pb.MediaPart(url="data:image/png;base64,Y2F0cw==")],
    ids=["file", "url"],
)
async def test_a_part_of_a_conversation_is_an_image(stub, tokenizer, engine, media):
    request = chat(pb.ContentPart(text="what?"), pb.ContentPart(image=media), mm_processor_kwargs_json='{"size": 1}')

    answers = [answer async for answer in stub.Chat(request)]

    [rendered] = tokenizer.rendered
    [item] = rendered.media
    assert (item.data, item.media_type) == (b"cats", "image/png")
    assert rendered.mm_processor_kwargs_json == b'{"size": 1}'
    assert engine.requests[0].mm_features[0].length == 4
    assert answers


async def test_a_name_stands_for_an_image_that_was_seen(stub, tokenizer):
    for media in (pb.MediaPart(data=b"cats", uuid="cat"), pb.MediaPart(uuid="cat")):
        [_ async for _ in stub.Chat(chat(pb.ContentPart(image=media)))]

    assert [request.media[0].uuid for request in tokenizer.rendered] == ["cat", "cat"]


async def test_embeddings_in_place_of_an_image(tokenizer, engine, serve_frontend):
    tokenizer.modalities = engine.modalities = IMAGES
    part = pb.MediaPart(embeds={"image_embeds": b"rows", "image_grid_thw": b"grid"}, uuid="mine")
    sampling = types_pb2.SamplingParams(max_tokens=2)

    async with (
        serve_frontend(listen="127.0.0.1:0", enable_mm_embeds=True) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert [answer async for answer in stub.Chat(chat(pb.ContentPart(image=part)))]
        prompt = pb.GenerateRequest(text="<image>", media=[part], sampling_params=sampling)
        assert [answer async for answer in stub.Generate(prompt)]

    for item in (tokenizer.rendered[0].media[0], tokenizer.encoded[-1].media[0]):
        assert (item.modality, item.uuid, item.is_embeds) == ("image", "mine", True)
        assert split_embeds(item.data) == {"image_embeds": b"rows", "image_grid_thw": b"grid"}


@pytest.mark.parametrize(
    "prompt", [{"text": "a<image>b"}, {"token_ids": pb.TokenIdList(ids=b"a<image>b")}], ids=["text", "ids"]
)
async def test_a_prompt_has_media(stub, engine, prompt):
    media = [pb.MediaPart(data=b"cats")]
    request = pb.GenerateRequest(**prompt, media=media, sampling_params=types_pb2.SamplingParams(max_tokens=2))

    answers = [answer async for answer in stub.Generate(request)]

    assert unpack_u32(engine.requests[0].prompt_token_ids) == [*b"a", *[PLACEHOLDER] * 4, *b"b"]
    assert answers


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"media": [pb.MediaPart(data=b"x", modality="smell")]}, "media[0]: media of modality 'smell' are not supported"),
        ({"media": [pb.MediaPart(data=b"x", media_type="audio/wav")]}, "At most 0 audio(s) may be provided in one prompt."),
        ({"media": [pb.MediaPart()]}, "media[0] needs data, url, embeds or uuid."),
        ({"media": [pb.MediaPart(data=b"broken")]}, "Failed to load image"),
        ({"media": [pb.MediaPart(data=b"x", embeds={"image_embeds": b"x"})]}, "media[0] has embeds beside data or url."),
        ({"media": [pb.MediaPart(embeds={"image_embeds": b"x"})]}, "You must set `--enable-mm-embeds` to input `image_embeds`"),
        ({"mm_processor_kwargs_json": "["}, "mm_processor_kwargs_json is not valid JSON"),
    ],
)
async def test_wrong_media_of_a_prompt_are_refused(stub, fields, text):
    assert text in await refusal(stub.Generate(pb.GenerateRequest(**({"text": "<image>"} | fields))))


async def test_other_media_of_a_conversation_are_refused(stub):
    request = chat(pb.ContentPart(image=pb.MediaPart(data=b"x", modality="smell")))

    assert "messages[0].content[0]: media of modality 'smell' are not supported" in await refusal(stub.Chat(request))
