"""Images in chat completions, from the content part to the features that the engine core receives."""

import asyncio
import base64

import pytest

from tests.frontend.chat.asking import TOOLS, added_up, ask, stream
from tests.frontend.fakes.images import IMAGES, PLACEHOLDER
from tests.frontend.media.web_server import answer, running_web_server
from tetrad.services.rpc.columns import unpack_u32


def link(data=b"cats", **fields):
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}, **fields}


def text(words):
    return {"type": "text", "text": words}


def user(*parts):
    return {"role": "user", "content": list(parts)}


@pytest.fixture
def tokenizer(tokenizer):
    tokenizer.modalities = IMAGES
    return tokenizer


@pytest.fixture
def make_engine(make_engine):
    def make(*args, **options):
        engine = make_engine(*args, **options)
        engine.modalities = IMAGES
        return engine

    return make


async def refused(http, status=400, **body):
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == status, response.text
    return response.json()["error"]


async def test_an_image_reaches_the_tokenizer_as_its_file_and_the_template_as_a_mark(frontend, tokenizer):
    await ask(frontend, messages=[user(text("look: "), link(), text(" nice"))], mm_processor_kwargs={"max_pixels": 9})

    [request] = tokenizer.rendered
    [item] = request.media
    assert (
        b'[{"type": "text", "text": "look: "}, {"type": "image"}, {"type": "text", "text": " nice"}]' in request.messages_json
    )
    assert (item.modality, item.data, item.uuid, item.media_type) == ("image", b"cats", "", "image/png")
    assert request.mm_processor_kwargs_json == b'{"max_pixels": 9}'


async def test_the_engine_core_receives_the_expanded_prompt_and_the_features(frontend, engine):
    body = await ask(frontend, messages=[user(link(b"cats"), text("or"), link(b"dog"))], max_tokens=3)

    [request] = engine.requests
    ids = unpack_u32(request.prompt_token_ids)
    assert ids == [*b"<user>", *[PLACEHOLDER] * 4, *b"or", *[PLACEHOLDER] * 3, *b"\n<assistant>"]
    assert [(each.offset, each.length, each.tensors["pixel_values"].inline) for each in request.mm_features] == [
        (6, 4, b"cats"),
        (12, 3, b"dog"),
    ]
    assert body["usage"]["prompt_tokens"] == len(ids)


async def test_images_of_several_messages_keep_their_order(frontend, tokenizer):
    messages = [user(link(b"a")), {"role": "assistant", "content": "one"}, user(link(b"b"), link(b"c"))]

    await ask(frontend, messages=messages)

    assert [item.data for item in tokenizer.rendered[0].media] == [b"a", b"b", b"c"]


async def test_every_one_of_n_outputs_has_the_image(frontend, engine):
    body = await ask(frontend, messages=[user(link())], n=3, max_tokens=2, logprobs=True)

    assert [len(request.mm_features) for request in engine.requests] == [1, 1, 1]
    assert len(body["choices"]) == 3


async def test_a_stream_and_tools_go_on_beside_an_image(frontend, engine):
    chunks = await stream(frontend, messages=[user(link(), text("what?"))], tools=TOOLS, max_tokens=4)

    message, reason, _, _ = added_up(chunks)
    assert (message["content"], reason) == ("The ", "length")
    assert len(engine.requests[0].mm_features) == 1


async def test_a_request_continues_with_its_image_on_the_next_engine_core(frontend, engine):
    engine.pause()

    asking = asyncio.create_task(stream(frontend, messages=[user(link())], max_tokens=4))
    await engine.until(lambda: engine.requests)
    await engine.take(2)
    await engine.kill()
    await engine.start()
    await engine.allow(None)

    assert added_up(await asking)[0]["content"] == "The "
    first, second = engine.requests
    assert second.resumed
    assert second.mm_features == first.mm_features


async def test_a_name_stands_for_an_image_that_was_seen(frontend, tokenizer, http):
    await ask(frontend, messages=[user(link(uuid="cat"))])
    await ask(frontend, messages=[user({"type": "image_url", "image_url": None, "uuid": "cat"})])
    missing = await refused(http, messages=[user({"type": "image_url", "image_url": None, "uuid": "dog"})])

    assert [item.uuid for request in tokenizer.rendered for item in request.media] == ["cat", "cat", "dog"]
    assert missing["message"] == "Cache miss for image at index 0 but data is not provided."
    assert missing["param"] == "messages[0].content[0]"


async def test_names_of_one_cache_salt_are_unknown_to_others(frontend, http):
    await ask(frontend, messages=[user(link(uuid="cat"))], cache_salt="a")
    body = {"messages": [user({"type": "image_url", "uuid": "cat"})]}

    assert (await refused(http, **body, cache_salt="b"))["message"].startswith("Cache miss for image")
    assert (await refused(http, **body))["message"].startswith("Cache miss for image")
    await ask(frontend, **body, cache_salt="a")


@pytest.mark.parametrize(
    ("parts", "text", "param"),
    [
        ([link(b"broken")], "Failed to load image", "messages[0].content[0]"),
        (
            [text("a"), {"type": "image_url", "image_url": "ftp://x"}],
            "either a HTTP, data or file URL",
            "messages[0].content[1]",
        ),
        ([{"type": "image_url", "image_url": "https://x/a.png"}], "allowed domains: []", "messages[0].content[0]"),
        ([{"type": "sound_url"}], "Unsupported chat content part type: 'sound_url'", "messages[0].content"),
        ([{"type": "video_url"}], "video_url must be a URL or {url}, got NoneType", "messages[0].content[0].video_url"),
        ([{"image": "x"}], "Missing 'type' field in multimodal part.", "messages[0].content"),
        ([link()] * 9, "At most 8 image(s) may be provided in one prompt.", "messages[0].content[8]"),
    ],
)
async def test_a_wrong_image_is_refused_by_its_place(http, engine, parts, text, param):
    error = await refused(http, messages=[user(*parts)])

    assert text in error["message"]
    assert error["param"] == param
    assert engine.requests == []


async def test_the_operator_limits_the_images_of_a_prompt(serve_frontend):
    async with serve_frontend(limit_mm_per_prompt='{"image": 1}') as frontend:
        error = await refused(frontend.http, messages=[user(link(), link())])

    assert error["message"] == (
        "At most 1 image(s) may be provided in one prompt. Set `--limit-mm-per-prompt` to increase this limit."
    )


@pytest.mark.parametrize("side", ["tokenizer", "engine"])
async def test_a_model_is_multimodal_if_both_services_are(request, side, sockets, serve_frontend):
    request.getfixturevalue(side).modalities = ()

    async with serve_frontend(model="small") as frontend:
        image = await refused(frontend.http, messages=[user(link())])
        kwargs = await refused(frontend.http, messages=[user(text("a"))], mm_processor_kwargs={"size": 1})

    assert (image["message"], image["param"]) == ("small is not a multimodal model", "messages[0].content[0]")
    assert (kwargs["message"], kwargs["param"]) == ("small is not a multimodal model", "mm_processor_kwargs")


async def test_too_long_after_the_expansion_is_too_long(http):
    error = await refused(http, messages=[user(link(bytes(600)))])

    assert error["message"].startswith("This model's maximum context length is 512 tokens. However, you requested 6")


@pytest.mark.parametrize(("most", "side", "offset"), [(16, "left", 0), (10, "right", 6)])
async def test_a_prompt_is_cut_beside_its_image(frontend, engine, most, side, offset):
    """Six tokens come before its four placeholders, twelve after them."""
    await ask(frontend, messages=[user(link())], truncate_prompt_tokens=most, truncation_side=side, max_tokens=1)

    [request] = engine.requests
    assert len(unpack_u32(request.prompt_token_ids)) == most
    assert request.mm_features[0].offset == offset


async def test_a_cut_image_is_refused(http):
    error = await refused(http, messages=[user(link())], truncate_prompt_tokens=15)

    assert error["message"].startswith("truncate_prompt_tokens=15 would split or drop a(n) image item")


async def test_what_fits_no_message_is_refused_with_both_sizes(serve_frontend):
    async with serve_frontend(max_message_bytes=1 << 20) as frontend:
        parts = [link(bytes(600_000)), link(bytes(600_000))]
        error = await refused(frontend.http, messages=[user(*parts)])

    assert error["message"].endswith("have at least 1200000 bytes together; the limit is 1048576 (max_message_bytes).")


async def test_images_that_an_engine_core_cannot_hold_are_refused_with_both_sizes(engine, serve_frontend):
    engine.max_media_bytes = 600
    async with serve_frontend() as frontend:
        await ask(frontend, messages=[user(link(), link())])
        error = await refused(frontend.http, messages=[user(link(), link(bytes(99)))])

    assert "bytes after preprocessing; the engine core holds at most 600." in error["message"]


async def test_an_image_is_fetched_from_an_allowed_host(serve_frontend, tokenizer):
    async with running_web_server() as web:
        web.answers["/a.png"] = answer(b"cats")
        fields = {"allowed_media_domains": ("127.0.0.1",), "allowed_media_networks": ("127.0.0.0/8",)}
        async with serve_frontend(**fields) as frontend:
            await ask(frontend, messages=[user({"type": "image_url", "image_url": web.url()})])

    assert tokenizer.rendered[0].media[0].data == b"cats"
