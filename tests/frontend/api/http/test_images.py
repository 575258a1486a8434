"""Images in the other APIs over HTTP: each API's own form becomes the same parts and files."""

import base64
import json

import pytest

from tests.frontend.fakes.images import PLACEHOLDER
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import unpack_u32

FILE = b"cats"
BASE64 = base64.b64encode(FILE).decode()
URL = f"data:image/png;base64,{BASE64}"
LONG_URL = f"data:image/png;base64,{BASE64 * 1000}"
MARK = {"type": "image"}
INPUT_IMAGE = {"type": "input_image", "image_url": URL, "detail": "auto", "file_id": None}
IMAGE_BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
URL_BLOCK = {"type": "image", "source": {"type": "url", "url": URL}}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}


def text(words):
    return {"type": "text", "text": words}


async def post(frontend, path, **body):
    response = await frontend.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def refused(frontend, path, **body):
    response = await frontend.http.post(path, json=body)
    assert response.status_code == 400, response.text
    return response.text


def rendered(tokenizer):
    """Return the contents that the template of the last request got, by role, and the files."""
    request = tokenizer.rendered[-1]
    messages = [(message["role"], message["content"]) for message in json.loads(request.messages_json)]
    return messages, [item.data for item in request.media]


class TestResponses:
    async def test_input_image_is_a_part_of_a_message(self, seeing, tokenizer):
        content = [{"type": "input_text", "text": "what?"}, INPUT_IMAGE]

        body = await post(seeing, "/v1/responses", input=[{"role": "user", "content": content}], max_output_tokens=2)

        assert rendered(tokenizer) == ([("user", [text("what?"), MARK])], [FILE])
        assert body["usage"]["input_tokens"] == len(b"<user>what?....\n<assistant>")

    async def test_an_image_of_a_function_follows_as_the_users(self, seeing, tokenizer):
        items = [
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "seen"}, INPUT_IMAGE]},
        ]

        await post(seeing, "/v1/responses", input=items, max_output_tokens=2)

        assert rendered(tokenizer)[0][2:] == [("tool", "seen"), ("user", [MARK])]

    async def test_an_earlier_response_keeps_its_image(self, seeing, tokenizer):
        content = [INPUT_IMAGE]
        first = await post(seeing, "/v1/responses", input=[{"role": "user", "content": content}], max_output_tokens=2)

        await post(seeing, "/v1/responses", input="and now?", previous_response_id=first["id"], max_output_tokens=2)

        assert rendered(tokenizer) == ([("user", [MARK]), ("assistant", "Th"), ("user", "and now?")], [FILE])

    async def test_a_conversation_that_is_cut_to_the_context_reads_its_images_once(self, seeing, tokenizer):
        body = {"input": [{"role": "user", "content": [INPUT_IMAGE]}], "truncation": "auto", "max_output_tokens": 2}

        await post(seeing, "/v1/responses", **body)

        assert len(tokenizer.rendered) > 1
        assert rendered(tokenizer) == ([("user", [MARK])], [FILE])

    async def test_tokens_are_counted_with_the_image(self, seeing):
        body = await post(seeing, "/v1/responses/input_tokens", input=[{"role": "user", "content": [INPUT_IMAGE]}])

        assert body["input_tokens"] == len(b"<user>....\n<assistant>")

    @pytest.mark.parametrize(
        ("part", "field"),
        [
            ({"type": "input_image"}, "input.0.content.0.image_url"),
            ({"type": "input_image", "file_id": "f"}, "input.0.content.0.file_id"),
            ({"type": "input_image", "image_url": "ftp://x"}, "input.0.content.0"),
        ],
    )
    async def test_a_wrong_part_is_named(self, seeing, part, field):
        answer = await refused(seeing, "/v1/responses", input=[{"role": "user", "content": [part]}])

        assert json.loads(answer)["error"]["param"] == field


class TestMessages:
    @pytest.mark.parametrize("block", [IMAGE_BLOCK, URL_BLOCK], ids=["base64", "url"])
    async def test_an_image_block_is_a_part_of_a_message(self, seeing, tokenizer, block):
        body = await post(seeing, "/v1/messages", messages=[{"role": "user", "content": [block, text("what?")]}], max_tokens=2)

        assert rendered(tokenizer) == ([("user", [MARK, text("what?")])], [FILE])
        assert tokenizer.rendered[0].media[0].media_type == "image/png"
        usage = body["usage"]
        num_tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert num_tokens == len(b"<user>....what?\n<assistant>")

    async def test_images_of_results_follow_all_results_before_the_users_words(self, seeing, tokenizer):
        results = [
            {"type": "tool_result", "tool_use_id": "t1", "content": [text("seen"), IMAGE_BLOCK]},
            {"type": "tool_result", "tool_use_id": "t2", "content": [IMAGE_BLOCK]},
        ]
        messages = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [TOOL_USE, TOOL_USE | {"id": "t2"}]},
            {"role": "user", "content": [*results, text("well?")]},
        ]

        await post(seeing, "/v1/messages", messages=messages, max_tokens=2)

        assert rendered(tokenizer)[0][2:] == [("tool", "seen"), ("tool", ""), ("user", [MARK, MARK, text("well?")])]

    async def test_two_turns_of_the_user_are_one(self, seeing, tokenizer):
        messages = [{"role": "user", "content": "look"}, {"role": "user", "content": [IMAGE_BLOCK]}]

        await post(seeing, "/v1/messages", messages=messages, max_tokens=2)

        assert rendered(tokenizer) == ([("user", [text("look"), MARK])], [FILE])

    async def test_tokens_are_counted_with_the_image(self, seeing):
        body = await post(seeing, "/v1/messages/count_tokens", messages=[{"role": "user", "content": [IMAGE_BLOCK]}])

        assert body["input_tokens"] == len(b"<user>....\n<assistant>")

    @pytest.mark.parametrize(
        ("block", "message"),
        [
            ({"type": "image"}, "messages.0.content.0.source: Field required"),
            ({"type": "image", "source": {"type": "base64"}}, "messages.0.content.0.source.data: Field required"),
            ({"type": "image", "source": {"type": "url"}}, "messages.0.content.0.source.url: Field required"),
            ({"type": "image", "source": {"type": "file"}}, "messages.0.content.0.source: sources of type 'file' are not"),
            ({"type": "image", "source": {"type": "base64", "data": "!"}}, "messages.0.content.0.source: Failed to load image"),
            ({"type": "document"}, "messages.0.content.0.type: blocks of type 'document' are not supported here."),
        ],
    )
    async def test_a_wrong_block_is_named(self, seeing, block, message):
        body = {"messages": [{"role": "user", "content": [block]}], "max_tokens": 2}

        assert message in await refused(seeing, "/v1/messages", **body)

    async def test_other_turns_have_no_images(self, seeing):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [IMAGE_BLOCK]}]

        assert "blocks of type 'image' are not supported here." in await refused(
            seeing, "/v1/messages", messages=messages, max_tokens=2
        )


class TestOllama:
    async def test_images_come_before_the_content_of_their_message(self, seeing, tokenizer):
        messages = [{"role": "user", "content": "what?", "images": [BASE64, BASE64]}]

        body = await post(seeing, "/api/chat", messages=messages, stream=False, options={"num_predict": 2})

        assert rendered(tokenizer) == ([("user", [MARK, MARK, text("what?")])], [FILE, FILE])
        assert body["prompt_eval_count"] == len(b"<user>........what?\n<assistant>")

    async def test_a_prompt_has_images(self, seeing, tokenizer):
        await post(seeing, "/api/generate", prompt="what?", images=[BASE64], stream=False, options={"num_predict": 2})

        assert rendered(tokenizer) == ([("user", [MARK, text("what?")])], [FILE])

    async def test_a_raw_prompt_places_its_images_itself(self, seeing, tokenizer, engine):
        body = {"prompt": "a<image>b", "images": [BASE64], "raw": True, "stream": False, "options": {"num_predict": 2}}

        await post(seeing, "/api/generate", **body)

        assert [item.data for item in tokenizer.encoded[0].media] == [FILE]
        assert unpack_u32(engine.requests[0].prompt_token_ids) == [*b"a", *[PLACEHOLDER] * 4, *b"b"]

    @pytest.mark.parametrize(("image", "text"), [("", "must be a file in base64, got an empty text"), ("!", "is not base64")])
    async def test_a_wrong_image_is_refused(self, seeing, image, text):
        messages = [{"role": "user", "content": "what?", "images": [image]}]

        assert text in await refused(seeing, "/api/chat", messages=messages)

    async def test_capabilities_tell_of_vision(self, seeing, tokenizer):
        body = await post(seeing, "/api/show")

        assert "vision" in body["capabilities"]


async def test_a_conversation_is_tokenized_with_its_images(seeing):
    content = [{"type": "image_url", "image_url": {"url": URL}}]

    body = await post(seeing, "/tokenize", messages=[{"role": "user", "content": content}])

    assert body["tokens"] == [*b"<user>", *[PLACEHOLDER] * 4, *b"\n<assistant>"]
    assert body["count"] == len(body["tokens"])


async def test_a_model_says_what_its_prompts_may_have(seeing):
    [card] = (await seeing.http.get("/v1/models")).json()["data"]

    assert card["input_modalities"] == ["text", "image"]


async def test_ids_alone_do_not_render_a_conversation_with_images(seeing):
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}]

    assert "has the type image_url, which has no token ids" in await refused(
        seeing, "/v1/chat/completions/render", messages=messages
    )


async def test_conversations_for_pooling_have_no_images(seeing, connect):
    llm = await connect()
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}]

    with pytest.raises(InvalidRequest, match="images are not supported for pooling"):
        await llm.texts.encode_chats([messages])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": LONG_URL}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"image_url": LONG_URL + "!"}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image", "image": LONG_URL}]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": LONG_URL}]}]}),
        ("/v1/responses", {"input": [{"type": LONG_URL}]}),
        ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": LONG_URL, "output": "x"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": LONG_URL}]}], "max_tokens": 1}),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": LONG_URL}}]}], "max_tokens": 1},
        ),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": LONG_URL}]}], "max_tokens": 1},
        ),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": LONG_URL}]}),
    ],
)
async def test_an_error_never_repeats_a_data_url(seeing, path, body):
    assert len(await refused(seeing, path, **body)) < 500
