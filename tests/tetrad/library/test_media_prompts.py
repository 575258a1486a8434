"""Images in the prompts and messages of programs, as the frontend gets them."""

import io

import numpy as np
import pytest
from PIL import Image

from tetrad.frontend.request.prompts import normalize_prompt
from tetrad.library.media_prompts import messages_with_files, with_files, with_processor_kwargs
from tetrad.services.errors import InvalidRequest

ARRAY = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
PIL = Image.fromarray(ARRAY[0])


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


async def files(items) -> list[bytes]:
    """Return the files that the frontend reads of a prompt with these images."""
    prompt = await with_files({"prompt": "<image>", "multi_modal_data": {"image": items}})
    return [source.data for source in normalize_prompt(prompt).media]


@pytest.mark.parametrize("items", [PIL, ARRAY[0], [PIL], (ARRAY[0],)], ids=["pil", "array", "list", "tuple"])
async def test_an_image_becomes_a_file(items):
    [data] = await files(items)

    assert np.array_equal(pixels(data), ARRAY[0])


async def test_an_array_of_images_and_a_list_of_kinds_keep_their_order():
    assert [pixels(data).tolist() for data in await files(ARRAY)] == ARRAY.tolist()
    assert [pixels(data).tolist() for data in (await files([ARRAY[1], PIL]))] == ARRAY[::-1].tolist()


async def test_bytes_and_names_of_seen_images_are_passed_on():
    prompt = {"prompt": "x", "multi_modal_data": {"image": [b"file", None]}, "multi_modal_uuids": {"image": [None, "seen"]}}

    media = normalize_prompt(await with_files(prompt)).media

    assert [(each.data, each.uuid) for each in media] == [(b"file", ""), (None, "seen")]


@pytest.mark.parametrize("prompt", ["text", [1, 2], {"prompt": "text"}, {"prompt": "text", "multi_modal_data": None}])
async def test_prompts_without_images_are_passed_on(prompt):
    assert await with_files(prompt) is prompt
    assert with_processor_kwargs(prompt, {"max_pixels": 1}) is prompt


async def test_a_wrong_image_is_named():
    with pytest.raises(InvalidRequest, match=r"multi_modal_data\['image'\]\[1\] must be a PIL image.*got str"):
        await files([PIL, "photo.png"])


def test_the_settings_of_a_prompt_come_before_those_of_the_call():
    prompt = {"prompt": "x", "multi_modal_data": {"image": b"file"}, "mm_processor_kwargs": {"max_pixels": 1}}

    assert with_processor_kwargs(prompt, {"max_pixels": 2, "min_pixels": 3})["mm_processor_kwargs"] == {
        "max_pixels": 1,
        "min_pixels": 3,
    }


@pytest.mark.parametrize("kind", [{"type": "image_pil"}, {}])
async def test_a_pil_part_of_a_message_becomes_a_file(kind):
    text = {"type": "text", "text": "What is it?"}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{**kind, "image_pil": PIL, "uuid": "a"}, text]},
    ]

    system, user = await messages_with_files(messages)

    part, other = user["content"]
    assert (system, other) == (messages[0], text)
    assert (part["type"], part["uuid"]) == ("image", "a")
    assert np.array_equal(pixels(part["image"]), ARRAY[0])


async def test_a_part_without_an_image_names_one_that_the_server_has_seen():
    [message] = await messages_with_files(
        [{"role": "user", "content": [{"type": "image_pil", "image_pil": None, "uuid": "a"}]}]
    )

    assert message["content"] == [{"type": "image_url", "image_url": None, "uuid": "a"}]


async def test_messages_without_pil_parts_are_passed_on():
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]

    assert await messages_with_files(messages) is messages


async def test_a_prompt_of_an_encoder_and_a_decoder_becomes_one_with_files():
    encoder = {"prompt": "", "multi_modal_data": {"image": ARRAY[0]}}

    prompt = with_processor_kwargs({"encoder_prompt": encoder, "decoder_prompt": "hi"}, {"size": 3})
    found = normalize_prompt(await with_files(prompt))
    plain = normalize_prompt(await with_files({"encoder_prompt": encoder, "decoder_prompt": [1, 2]}))

    assert (found.text, found.mm_processor_kwargs) == ("hi", {"size": 3})
    assert np.array_equal(pixels(found.media[0].data), ARRAY[0])
    assert plain.token_ids == [1, 2]
