"""The encoder inputs of unfinished requests: each once, up to a number of bytes."""

import pytest

from tests.engine_core_svc.media.encoder_model import image
from tetrad.engine_core_svc.core.media import EncoderInput
from tetrad.engine_core_svc.media.store import MediaStore
from tetrad.services.errors import InvalidRequest, Overloaded, Unavailable


@pytest.fixture
def store():
    return MediaStore(100)


def inputs(**sizes):
    return {name: EncoderInput(size) for name, size in sizes.items()}


def hold(store, spans, given):
    store.check(spans, given)
    store.hold(spans, given)


def test_requests_with_the_same_item_share_its_bytes_until_the_last_one_ends(store):
    first = inputs(a=60)
    hold(store, [image("a", 0, 3)], first)
    hold(store, [image("a", 5, 3)], inputs(a=60))

    assert (store.num_bytes, store.input_of("a")) == (60, first["a"])
    store.release([image("a", 0, 3)])
    assert store.num_bytes == 60
    store.release([image("a", 5, 3)])
    assert (store.num_bytes, len(store)) == (0, 0)


def test_an_item_twice_in_one_prompt_counts_once(store):
    spans = [image("a", 0, 3), image("a", 5, 3)]
    hold(store, spans, inputs(a=60))

    assert store.num_bytes == 60
    store.release(spans)
    assert len(store) == 0


def test_an_input_that_another_request_has_may_be_missing(store):
    hold(store, [image("a", 0, 3)], inputs(a=60))

    hold(store, [image("a", 0, 3)], {})

    assert store.num_bytes == 60


def test_a_missing_input_is_refused_so_that_it_is_sent_again(store):
    with pytest.raises(Unavailable, match="no unfinished request has image 'a'; send its tensors") as refused:
        store.check([image("a", 0, 3)], {})

    assert refused.value.reason == "MM_CACHE_MISS"


def test_requests_beyond_the_limit_are_refused_with_sizes(store):
    hold(store, [image("a", 0, 3)], inputs(a=60))
    store.check([image("b", 0, 3)], inputs(b=40))

    text = r"have 60 bytes; 41 more exceed the limit of 100 \(max_total_media_bytes\)"
    with pytest.raises(Overloaded, match=text) as refused:
        store.check([image("b", 0, 3)], inputs(b=41))
    assert refused.value.retry_after_s


def test_a_request_that_never_fits_is_refused_for_good(store):
    spans = [image("a", 0, 3), image("b", 3, 3)]
    store.check(spans, inputs(a=50, b=50))

    with pytest.raises(InvalidRequest, match="of this request have 101 bytes; the limit is 100") as refused:
        store.check(spans, inputs(a=50, b=51))
    assert (refused.value.reason, refused.value.field) == ("MEDIA_TOO_LARGE", "mm_features")


@pytest.mark.parametrize(
    "other", [{"content_hash": "another"}, {"grid": (1, 3, 1)}, {"num_embeds": 2}, {"modality": "video"}], ids=str
)
def test_an_identifier_stands_for_one_item_among_unfinished_requests(store, other):
    hold(store, [image("a", 0, 3)], inputs(a=60))
    span = image("a", 0, 3)
    changed = type(span)(**{name: getattr(span, name) for name in span.__dataclass_fields__} | other)

    with pytest.raises(InvalidRequest, match="'a' stands for two different items: image 'hash of a' of 3 embeddings and"):
        store.check([changed], inputs(a=60))


def test_an_identifier_stands_for_one_item_in_a_prompt(store):
    with pytest.raises(InvalidRequest, match="two different items"):
        store.check([image("a", 0, 3), image("a", 3, 4)], inputs(a=60))
