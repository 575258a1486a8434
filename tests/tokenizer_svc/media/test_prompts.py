"""Prompts with images over gRPC: placeholders, templates of texts, truncation, settings of the processor, identifiers."""

import json
from typing import Any

import pytest

from tests.pictures import picture
from tests.tokenizer_svc.errors import error_of
from tests.tokenizer_svc.media.conftest import ModelDirectory, ServeModel, StubOf, chat, item
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import tokenizer_pb2

OF_TEXTS = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
WIDE = picture(100, 60)


class TestPlaceholders:
    async def test_a_prompt_of_text_has_its_own(self, stub_of: StubOf) -> None:
        request = tokenizer_pb2.EncodeRequest(texts=["a <image> b"], media=[item(WIDE)], return_token_strings=True)
        stub = await stub_of("llava")
        [encoding] = (await stub.Encode(request)).encodings

        assert list(encoding.token_strings) == ["a", "Ġ", *["<image>"] * 4, "Ġ", "b"]
        [feature] = encoding.mm_features
        assert (feature.offset, feature.length, feature.num_embeds) == (2, 4, 4)

    @pytest.mark.parametrize(
        ("text", "number", "error"),
        [
            ("<image><image>", 1, "Found more '<image>' placeholders in input prompt than actual multimodal data items."),
            ("no image", 1, "Found fewer '<image>' placeholders in input prompt than actual multimodal data items."),
        ],
    )
    async def test_their_number_must_be_that_of_the_images(self, stub_of: StubOf, text: str, number: int, error: str) -> None:
        stub = await stub_of("llava")
        request = tokenizer_pb2.EncodeRequest(texts=[text], media=[item(WIDE)] * number)
        refused = await error_of(stub.Encode(request))

        assert isinstance(refused, InvalidRequest)
        assert error in refused.message
        assert refused.field == "texts"

    async def test_text_of_users_cannot_add_one(self, stub_of: StubOf) -> None:
        stub = await stub_of("llava")
        refused = await error_of(stub.RenderChat(chat([WIDE, "what is <image>?"])))

        assert "Found more '<image>' placeholders" in refused.message

    async def test_text_without_images_may_have_them(self, stub_of: StubOf) -> None:
        stub = await stub_of("llava")
        answer = await stub.RenderChat(chat(["what is <image>?"]))

        assert not answer.mm_features

    async def test_image_parts_and_images_must_be_equally_many(self, stub_of: StubOf) -> None:
        request = chat([WIDE, "Hi"])
        del request.media[:]
        stub = await stub_of("llava")
        refused = await error_of(stub.RenderChat(request))

        assert refused.message == "messages_json has 1 image part(s), and media has 0 image(s)."

    async def test_media_belong_to_one_text(self, stub_of: StubOf) -> None:
        stub = await stub_of("llava")
        refused = await error_of(stub.Encode(tokenizer_pb2.EncodeRequest(texts=["<image>", "b"], media=[item(WIDE)])))

        assert refused.message == "media belong to one text; texts has 2."


class TestTemplatesOfTexts:
    """A template that reads only texts gets the placeholders of a message before its text, as in vLLM."""

    async def rendered(self, stub: Any, parts: list[str | bytes]) -> str:
        return (await stub.RenderChat(chat(parts, chat_template=OF_TEXTS))).prompt

    async def test_images_stand_before_the_text(self, stub_of: StubOf) -> None:
        prompt = await self.rendered(await stub_of("qwen2_5_vl"), ["a", WIDE, "b", WIDE])

        image = "<|vision_start|><|image_pad|><|vision_end|>"
        assert prompt == f"[{image}\n{image}\na\nb]"

    async def test_those_in_the_text_are_kept(self, stub_of: StubOf) -> None:
        prompt = await self.rendered(await stub_of("llava"), ["see <image> and", WIDE, WIDE])

        assert prompt == "[<image>\nsee <image> and]"

    async def test_more_in_the_text_are_refused(self, stub_of: StubOf) -> None:
        request = chat(["<image><image>", WIDE], chat_template=OF_TEXTS)
        stub = await stub_of("llava")
        refused = await error_of(stub.RenderChat(request))

        text = "Found more '<image>' placeholders in input prompt than actual multimodal data items."
        assert refused.message == text


class TestTruncation:
    @pytest.mark.parametrize(("side", "kept"), [("LEFT", "tail"), ("RIGHT", "head")])
    async def test_text_before_or_behind_an_image_is_cut(self, stub_of: StubOf, side: str, kept: str) -> None:
        text = "0123456789<image>" if kept == "tail" else "<image>0123456789"
        request = tokenizer_pb2.EncodeRequest(
            texts=[text], media=[item(WIDE)], max_tokens=6, truncation_side=f"TRUNCATION_SIDE_{side}"
        )
        stub = await stub_of("llava")
        request.return_token_strings = True
        [encoding] = (await stub.Encode(request)).encodings

        images = ["<image>"] * 4
        assert list(encoding.token_strings) == (["8", "9", *images] if kept == "tail" else [*images, "0", "1"])
        assert encoding.mm_features[0].offset == (2 if kept == "tail" else 0)

    async def test_an_image_is_not_cut(self, stub_of: StubOf) -> None:
        stub = await stub_of("llava")
        refused = await error_of(stub.RenderChat(chat([WIDE, "Hi"], max_tokens=16)))

        assert "truncate_prompt_tokens=16 would split or drop a(n) image item" in refused.message
        assert refused.field == "max_tokens"


class TestSettings:
    async def features(self, stub: Any, settings: dict[str, object]) -> Any:
        answer = await stub.RenderChat(chat([WIDE], mm_processor_kwargs_json=json.dumps(settings).encode()))
        return answer.mm_features[0]

    async def test_change_the_size(self, stub_of: StubOf) -> None:
        stub = await stub_of("qwen2_5_vl")
        whole = await self.features(stub, {})
        small = await self.features(stub, {"max_pixels": 4 * 28 * 28})

        assert (whole.num_embeds, small.num_embeds) == (8, 2)
        assert whole.identifier != small.identifier

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({"image_mean": [0, 0, 0]}, "mm_processor_kwargs has 'image_mean'; this model takes size, min_pixels"),
            ({"patch_size": 7}, "mm_processor_kwargs has 'patch_size'"),
            (
                {"size": "large"},
                "Failed to load image 0: with mm_processor_kwargs {'size': 'large'}, the image processor fails: ",
            ),
            ({"do_resize": False}, "with mm_processor_kwargs {'do_resize': False}, the image processor fails: cannot reshape"),
            ({"max_pixels": 1 << 20, "min_pixels": 1 << 20}, "embeddings; the limit is 56, those of the largest image"),
            ({"max_pixels": 10**9, "min_pixels": 10**9}, "pixels; the limit is 67108864"),
            ([], "mm_processor_kwargs_json is not a JSON object"),
        ],
    )
    async def test_others_are_refused(self, stub_of: StubOf, settings: Any, reason: str) -> None:
        stub = await stub_of("qwen2_5_vl")
        refused = await error_of(self.features(stub, settings))

        assert isinstance(refused, InvalidRequest)
        assert reason in refused.message
        assert "\n" not in refused.message

    async def test_need_media(self, stub_of: StubOf) -> None:
        stub = await stub_of("llava")
        refused = await error_of(stub.RenderChat(chat(["Hi"], mm_processor_kwargs_json=b"{}")))

        assert refused.field == "mm_processor_kwargs_json"


class TestIdentifiers:
    async def test_name_the_content(self, stub_of: StubOf, model_directory: ModelDirectory, serve_model: ServeModel) -> None:
        stub = await stub_of("llava")
        answer = await stub.RenderChat(chat([WIDE, WIDE, picture(100, 60, seed=1)]))
        async with serve_model(model_directory("llava")) as replica:
            again = await replica.RenderChat(chat([WIDE]))

        first, second, other = (feature.identifier for feature in answer.mm_features)
        assert first == second != other
        assert again.mm_features[0].identifier == first
        assert all(feature.hash == feature.identifier for feature in answer.mm_features)

    async def test_a_uuid_stands_for_a_file_that_was_sent(self, stub_of: StubOf) -> None:
        named, unnamed = chat([WIDE]), chat([WIDE])
        named.media[0].uuid = unnamed.media[0].uuid = "mine"
        unnamed.media[0].data = b""
        stub = await stub_of("llava")
        missed = await error_of(stub.RenderChat(unnamed))
        first = await stub.RenderChat(named)
        again = await stub.RenderChat(unnamed)

        assert missed.message == "Cache miss for image at index 0 but data is not provided."
        assert again == first

    async def test_after_a_reset_a_uuid_needs_its_file_again(
        self, serve_model: ServeModel, model_directory: ModelDirectory
    ) -> None:
        request = chat([WIDE])
        request.media[0].uuid = "mine"
        async with serve_model(model_directory("llava")) as stub:
            await stub.RenderChat(request)
            await stub.ResetMediaCache(tokenizer_pb2.ResetMediaCacheRequest())
            request.media[0].data = b""
            missed = await error_of(stub.RenderChat(request))

        assert "Cache miss for image at index 0" in missed.message

    async def test_without_a_cache_a_uuid_needs_its_file(
        self, model_directory: ModelDirectory, serve_model: ServeModel
    ) -> None:
        request = chat([WIDE])
        request.media[0].uuid = "mine"
        async with serve_model(model_directory("llava"), media_cache_bytes=0) as stub:
            first = await stub.RenderChat(request)
            again = await stub.RenderChat(request)
            request.media[0].data = b""
            missed = await error_of(stub.RenderChat(request))

        assert again == first
        assert "Cache miss for image at index 0" in missed.message


async def test_a_batched_call_is_answered_as_if_it_were_alone(stub_of: StubOf) -> None:
    render, broken = chat([WIDE, "Hi"]), chat([b"no image"])
    stub = await stub_of("llava")
    alone = await stub.RenderChat(render)
    stream = stub.Batch()
    calls = [tokenizer_pb2.BatchedCall(render_chat=request) for request in (render, broken)]
    await stream.write(tokenizer_pb2.BatchRequest(calls=calls))
    answers = (await stream.read()).answers
    await stream.done_writing()

    assert answers[0].render_chat == alone
    assert "Failed to load image 0" in answers[1].error.message
    assert len(unpack_u32(alone.token_ids)) > 4
