"""Embeddings in place of images and audio, in messages and prompts: the forms that are read, and those that are refused."""

import base64

import pytest

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.loader import MediaLoader
from tetrad.frontend.media.parts import media_of_part
from tetrad.frontend.media.prompt_media import sources_of
from tetrad.services.errors import InvalidRequest
from tetrad.services.models.media_embeds import split_embeds

TENSOR, GRID = b"a tensor", b"a grid"
TEXTS = {"image_embeds": base64.b64encode(TENSOR).decode(), "image_grid_thw": base64.b64encode(GRID).decode()}


def part(value, kind="image_embeds", **fields):
    return {"type": kind, kind: value, **fields}


async def loaded(source):
    [item] = await MediaLoader(FrontendSettings()).load([source])
    return item


@pytest.mark.parametrize(
    ("value", "files"),
    [
        (TEXTS["image_embeds"], {"image_embeds": TENSOR}),
        (TEXTS, {"image_embeds": TENSOR, "image_grid_thw": GRID}),
    ],
)
async def test_a_part_has_a_tensor_or_several_by_name(value, files):
    item = await loaded(media_of_part("here", part(value, uuid="mine")))

    assert (item.modality, item.is_embeds, item.uuid) == ("image", True, "mine")
    assert split_embeds(item.data) == files


async def test_a_part_that_was_seen_has_a_uuid_alone():
    item = await loaded(media_of_part("here", part(None, "audio_embeds", uuid="mine")))

    assert (item.modality, item.is_embeds, item.data, item.uuid) == ("audio", True, b"", "mine")


def test_a_part_may_leave_its_type_out():
    found = media_of_part("here", {"image_embeds": TEXTS["image_embeds"]})

    assert isinstance(found, MediaSource)
    assert found.is_embeds


@pytest.mark.parametrize("value", [None, "", 3, [], {}, {"image_embeds": None}, {str(place): "AAAA" for place in range(9)}])
def test_other_values_are_refused(value):
    with pytest.raises(InvalidRequest, match="must be the base64 of a file of torch") as refused:
        media_of_part("here", part(value))

    assert refused.value.field == "here.image_embeds"


async def test_a_tensor_that_is_no_base64_is_named():
    with pytest.raises(InvalidRequest, match="Failed to load image_grid_thw: it is not base64") as refused:
        await loaded(media_of_part("here", part({**TEXTS, "image_grid_thw": "!"})))

    assert refused.value.field == "here.image_grid_thw"


async def test_a_tensor_larger_than_a_message_is_refused():
    source = media_of_part("here", part("A" * 4_000_000))

    with pytest.raises(InvalidRequest, match=r"image_embeds has at least \d+ bytes; the limit is \d+ \(max_message_bytes\)"):
        await MediaLoader(FrontendSettings(max_message_bytes=1 << 20)).load([source])


def test_the_names_of_a_prompt_are_those_of_its_embeddings():
    given = [MediaSource(where="here", embeds={"image_embeds": TENSOR}, is_embeds=True)] * 2

    found = sources_of({"image": given}, {"image": ["a", None]})

    assert [source.uuid for source in found] == ["a", ""]


@pytest.mark.parametrize(
    "file", [b"", b"\0embeds\n", b"\0embeds\n\1", b"\0embeds\n" + (2).to_bytes(8, "little") + b"[]" + bytes(8)]
)
def test_other_files_are_no_embeddings(file):
    with pytest.raises(ValueError, match="embeddings"):
        split_embeds(file)
