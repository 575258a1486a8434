"""Images of prompts: vLLM's forms of data and names, and content parts of messages."""

import numpy as np
import pytest

from tetrad.frontend.media.features import MediaFeature, kept_features
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.parts import media_of_part, media_part
from tetrad.frontend.media.prompt_media import sources_of
from tetrad.frontend.request.prompts import normalize_prompt
from tetrad.services.errors import InvalidRequest


@pytest.mark.parametrize(
    ("data", "uuids", "found"),
    [
        (None, None, []),
        ({}, {}, []),
        ({"image": b"a"}, None, [(b"a", "")]),
        ({"image": [b"a", b"b"]}, {"image": ["x", None]}, [(b"a", "x"), (b"b", "")]),
        ({"image": [None, b"b"]}, {"image": ["x", None]}, [(None, "x"), (b"b", "")]),
        ({"image": b"a", "video": None}, {"image": "x"}, [(b"a", "x")]),
        (None, {"image": ["x"]}, [(None, "x")]),
    ],
)
def test_vllms_forms_are_read(data, uuids, found):
    assert [(source.data, source.uuid) for source in sources_of(data, uuids)] == found


@pytest.mark.parametrize(
    ("data", "uuids", "field", "text"),
    [
        ([b"a"], None, "multi_modal_data", "must be an object like"),
        ({"sound": b"a"}, None, "multi_modal_data", "of modality 'sound' is not supported, only 'image', 'audio', 'video'"),
        ({"image": "a.png"}, None, "multi_modal_data.image[0]", "must be the bytes of a file, got str"),
        ({"image": [b"a", b""]}, None, "multi_modal_data.image[1]", "got empty bytes"),
        ({"image": [None]}, None, "multi_modal_data.image[0]", "got nothing"),
        ({"image": [b"a"]}, {"image": ["x", "y"]}, "multi_modal_uuids", "has 2 names for 1 items"),
        ({"image": b"a"}, {"image": [7]}, "multi_modal_uuids.image[0]", "must be a text of at least one character, got 7"),
        ({"image": b"a"}, {"image": ["x" * 300]}, "multi_modal_uuids.image[0]", "must have at most 256 characters"),
        ({"image": b"a"}, {"image": ["a\0"]}, "multi_modal_uuids.image[0]", "all printable"),
    ],
)
def test_other_forms_are_refused_by_their_place(data, uuids, field, text):
    with pytest.raises(InvalidRequest) as refused:
        sources_of(data, uuids)

    assert refused.value.field == field
    assert text in refused.value.message


@pytest.mark.parametrize(
    "other", [{"prompt_embeds": np.zeros((2, 4), np.float32)}, {"prompt_token_ids": [1], "mm_features": [1]}]
)
def test_images_need_a_prompt_with_placeholders(other):
    with pytest.raises(InvalidRequest, match="multi_modal_data needs a prompt of text or of ids"):
        normalize_prompt({**other, "multi_modal_data": {"image": b"a"}})


def test_a_prompt_of_ids_has_images_for_its_placeholders():
    prompt = normalize_prompt({"prompt_token_ids": [1, 2], "multi_modal_data": {"image": b"a"}})

    assert (prompt.token_ids, [each.data for each in prompt.media]) == ([1, 2], [b"a"])


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"type": "image_url", "image_url": "u"}, ("u", "", None)),
        ({"type": "image_url", "image_url": {"url": "u", "detail": "low"}}, ("u", "", None)),
        ({"type": "image_url", "image_url": {"url": "u", "uuid": "x"}}, ("u", "x", None)),
        ({"type": "image_url", "image_url": {"url": "u"}, "uuid": "x"}, ("u", "x", None)),
        ({"type": "image_url", "image_url": None, "uuid": "x"}, ("", "x", None)),
        ({"image_url": "u"}, ("u", "", None)),
        ({"type": "input_image", "image_url": "u", "detail": "auto", "file_id": None}, ("u", "", None)),
        ({"type": "image", "image": b"a", "uuid": "x"}, ("", "x", b"a")),
        (media_part(MediaSource(where="there", url="u")), ("u", "", None)),
    ],
)
def test_parts_of_messages_with_images(part, found):
    source = media_of_part("here", part)

    assert (source.url, source.uuid, source.data) == found


@pytest.mark.parametrize("part", ["a", {"type": "text", "text": "a"}, {"type": "input_file"}, {"text": "a"}, {}, 7])
def test_other_parts_have_no_image(part):
    assert media_of_part("here", part) is None


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "image_url"}, "here.image_url must be a URL or {url}, got NoneType"),
        ({"type": "image_url", "image_url": ""}, "got an empty text"),
        ({"type": "image_url", "image_url": {"url": 7}}, "got int"),
        ({"type": "input_image", "file_id": "f"}, "here.file_id is not supported"),
        ({"type": "image_url", "image_url": "u", "uuid": ""}, "here.uuid must be a text of at least one character"),
        (
            {"type": "image", "image": "u"},
            "Unsupported chat content part type: 'image'; send an image as a part of",
        ),
    ],
)
def test_wrong_parts_are_refused(part, text):
    with pytest.raises(InvalidRequest) as refused:
        media_of_part("here", part)

    assert text in refused.value.message


def feature(offset, length):
    return MediaFeature("image", "x", offset, length, 0, None)


class TestTruncation:
    FEATURES = (feature(2, 3), feature(6, 2))

    @pytest.mark.parametrize(
        ("most", "keep_end", "offsets"), [(None, True, [2, 6]), (10, True, [2, 6]), (8, True, [0, 4]), (8, False, [2, 6])]
    )
    def test_moves_whole_images(self, most, keep_end, offsets):
        kept = kept_features(self.FEATURES, 10, most, keep_end)

        assert [each.offset for each in kept] == offsets

    def test_keeps_an_item_without_tokens(self):
        assert kept_features([feature(0, 0)], 10, 3, keep_end=True) == (feature(0, 0),)

    @pytest.mark.parametrize(("most", "keep_end"), [(7, True), (4, True), (7, False), (2, False)])
    def test_is_refused_if_it_cuts_an_image(self, most, keep_end):
        with pytest.raises(InvalidRequest, match=f"truncate_prompt_tokens={most} would split or drop a"):
            kept_features(self.FEATURES, 10, most, keep_end)
