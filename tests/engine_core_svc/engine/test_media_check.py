"""Media of a submission that cannot be processed are refused, with value and limit."""

import pytest

from tests.engine_core_svc.media.attended import clip
from tests.engine_core_svc.media.encoder_model import image
from tetrad.engine_core_svc.core.media import EncoderInput, MediaSpan, Modality
from tetrad.engine_core_svc.engine.media_check import NO_MEDIA, AttendedMediaCheck, MediaCheck
from tetrad.services.errors import InvalidRequest


@pytest.fixture
def media_check():
    modalities = [Modality("image", 2, 12), Modality("video", 0, 40), Modality("scan", 0, 40, is_whole=True)]
    return MediaCheck("m", modalities, cache_size=20, max_message_bytes=1000, max_step_tokens=8)


def refusal(media_check, *spans, inputs=None, num_prompt_tokens=30):
    with pytest.raises(InvalidRequest) as refused:
        media_check.check(spans, inputs or {}, num_prompt_tokens)
    assert refused.value.field == "mm_features"
    return refused.value.message


def test_media_at_the_limits_are_accepted(media_check):
    spans = [image("a", 0, 12), image("b", 12, 18, num_embeds=12, is_embed=bytes([1] * 12 + [0] * 6), grid=(1, 3, 4))]

    media_check.check(spans, {"a": EncoderInput(1000 - 64)}, 30)
    media_check.check([MediaSpan("v", "video", "h", 0, 20, 20), MediaSpan("s", "scan", "h", 20, 8, 8)], {}, 30)


def test_a_text_model_takes_no_media():
    assert refusal(NO_MEDIA, image("a", 0, 3)) == "The model is not a multimodal model."


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (MediaSpan("a", "audio", "h", 0, 3, 3), "Media item 0 is of modality 'audio'; m takes image, video, scan."),
        (image("", 0, 3), "Media item 0 has no identifier."),
        (image("a", 28, 3), "Media item 0 has 3 tokens at position 28; the prompt has 30 tokens, and an item at least 1."),
        (image("a", 3, 0), "Media item 0 has 0 tokens at position 3; the prompt has 30 tokens, and an item at least 1."),
        (image("a", 0, 3, is_embed=b"\1\1"), "Media item 0 has is_embed of 2 bytes; it needs 3, each 0 or 1."),
        (image("a", 0, 3, is_embed=b"\1\2\1"), "Media item 0 has is_embed of 3 bytes; it needs 3, each 0 or 1."),
        (image("a", 0, 3, num_embeds=2), "Media item 0 has num_embeds 2, but 3 of its tokens take an embedding."),
        (
            image("a", 0, 3, is_embed=b"\1\0\1"),
            "Media item 0 has num_embeds 3, but 2 of its tokens take an embedding.",
        ),
        (
            image("a", 0, 3, num_embeds=0, is_embed=bytes(3)),
            "Media item 0 has num_embeds 0, but 0 of its tokens take an embedding.",
        ),
        (
            image("a", 0, 3, grid=(3, 1)),
            "Media item 0 has grid [3, 1]; it needs time, height and width of its 3 embeddings.",
        ),
        (
            image("a", 0, 3, grid=(1, 2, 2)),
            "Media item 0 has grid [1, 2, 2]; it needs time, height and width of its 3 embeddings.",
        ),
        (image("a", 0, 13), "Media item 0 has 13 embeddings; the maximum of one image is 12. Reduce its size."),
        (
            MediaSpan("a", "video", "h", 0, 21, 21),
            "Media item 0 has 21 embeddings; the encoder cache has room for 20. Reduce its size.",
        ),
        (
            MediaSpan("a", "scan", "h", 0, 9, 9),
            "Media item 0 has 9 tokens, which one step must compute; its maximum is 8. Raise --max-num-batched-tokens.",
        ),
    ],
    ids=lambda value: value.split(";")[0] if isinstance(value, str) else "",
)
def test_an_item_that_cannot_be_processed_is_refused(media_check, span, message):
    assert refusal(media_check, span) == message


def test_items_are_in_order_and_do_not_overlap(media_check):
    message = refusal(media_check, image("a", 5, 5), image("b", 9, 5))

    assert message == "Media item 1 begins at position 9, before the end 10 of the item before it."


def test_a_prompt_has_a_limited_number_of_items_of_a_kind(media_check):
    spans = [image("a", place, 1) for place in range(3)]

    assert refusal(media_check, *spans) == "At most 2 image(s) may be provided in one prompt; this one has 3."
    media_check.check([MediaSpan("v", "video", "h", place, 1, 1) for place in range(20)], {}, 30)


def test_an_item_fits_a_message_to_the_worker(media_check):
    message = refusal(media_check, image("a", 0, 3), inputs={"a": EncoderInput(937)})

    assert message == "A media item takes a message of 1001 bytes; the limit is 1000 (max_message_bytes)."


THAT = "that of a model with an encoder and a decoder"
ONE = "m has an encoder and a decoder: a prompt needs exactly 1 audio, and this one has "


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([], f"{ONE}0."),
        ([clip("a"), clip("b")], f"{ONE}2."),
        ([image("a", 0, 10)], "Media item 0 is of modality 'image'; m takes audio."),
        ([clip("")], "Media item 0 has no identifier."),
        ([clip("a", num_embeds=9)], "Media item 0 has 9 embeddings; each audio of this model has 10."),
        (
            [clip("a", offset=1, length=10)],
            f"Media item 0 has 10 tokens at position 1; {THAT} has none, and no is_embed and grid.",
        ),
    ],
)
def test_a_model_with_an_encoder_and_a_decoder_takes_one_item_without_tokens(spans, message):
    attended = AttendedMediaCheck("m", [Modality("audio", 0, 10)], cache_size=10, max_message_bytes=1000, max_step_tokens=8)

    attended.check([clip("a")], {}, 5)

    assert refusal(attended, *spans) == message
