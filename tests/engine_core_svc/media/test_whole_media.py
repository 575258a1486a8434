"""Items of whole modalities: a step computes all tokens of an item or none, whatever limits its tokens."""

from types import SimpleNamespace

import pytest

from tests.engine_core_svc.media.encoder_model import EncoderModel, image, media_of, prompt_of
from tetrad.engine_core_svc.core.media import MediaSpan


@pytest.fixture
def make(make_bench):
    """Return a maker of benches with an encoder whose images are whole; keyword arguments are options of benches."""

    def make(**fields):
        media = media_of(100, max_step_tokens=fields["max_num_batched_tokens"], whole=["image"])
        bench = make_bench(media=media, **fields)
        return bench, EncoderModel(bench.scheduler)

    return make


def add_encoded(bench, encoder, size, *media):
    """Add a request whose items are encoded before its first step."""
    bench.scheduler.admitting = False
    request = bench.add(prompt_of(1000, size, media), media=media)
    bench.scheduler.media.begin_plan()
    bench.scheduler.media.most_tokens(request, 0, size)
    encoder.encode_all()
    bench.scheduler.admitting = True
    return request


def test_a_step_ends_before_an_item_that_it_cannot_compute_whole(make):
    bench, encoder = make(max_num_batched_tokens=16)
    request = add_encoded(bench, encoder, 40, image("a", 6, 2), image("b", 12, 12))

    steps = [bench.step() for _ in range(2)]

    assert steps == [{request.key: 12}, {request.key: 16}]


def test_a_step_computes_the_rest_of_an_item_beyond_what_protects_decodes(make):
    bench, encoder = make(max_num_batched_tokens=32, long_prefill_token_threshold=5)
    other = bench.add(9)
    request = add_encoded(bench, encoder, 20, image("a", 0, 12))

    assert bench.step() == {other.key: 5, request.key: 12}


def test_tokens_that_complete_an_item_are_taken_from_those_of_the_step(make):
    bench, encoder = make(max_num_batched_tokens=20, long_prefill_token_threshold=5)
    request = add_encoded(bench, encoder, 20, image("a", 0, 12))
    others = [bench.add(9) for _ in range(3)]

    assert bench.step() == {request.key: 12, others[0].key: 5, others[1].key: 3}


@pytest.fixture
def request_with_media():
    """Return a request with an image at positions 4 to 9, a clip at 12 to 17, and a second image behind it."""
    spans = (image("a", 4, 6), MediaSpan("c", "audio", "h", 12, 6, 6), image("b", 18, 6))
    return SimpleNamespace(payload=SimpleNamespace(media=spans))


@pytest.mark.parametrize(
    ("start", "num_tokens", "most", "whole"),
    [
        (0, 3, 64, 3),
        (0, 4, 64, 4),
        (1, 5, 64, 3),
        (0, 10, 64, 10),
        (4, 5, 6, 6),
        (4, 5, 5, 0),
        (7, 1, 3, 3),
        (7, 1, 2, 0),
        (7, 0, 64, 0),
        (10, 4, 64, 4),
        (12, 7, 64, 6),
        (18, 6, 64, 6),
        (24, 5, 64, 5),
    ],
    ids=[
        "before an item",
        "up to an item",
        "not into an item",
        "to the end of an item",
        "an item that has room",
        "an item that has none",
        "the rest of an item, behind a cached prefix",
        "a rest without room",
        "no tokens",
        "into an item of another modality",
        "through that item, up to the next one",
        "the last item",
        "behind all items",
    ],
)
def test_the_tokens_of_a_step_end_inside_no_item(request_with_media, start, num_tokens, most, whole):
    media = media_of(100, whole=["image"])

    assert media.whole_tokens(request_with_media, start, num_tokens, most) == whole


def test_models_without_whole_modalities_end_steps_anywhere(request_with_media):
    assert media_of(100).whole_tokens(request_with_media, 0, 5, 64) == 5
