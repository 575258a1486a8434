"""The cache of preprocessed images stays within its bytes."""

from tetrad.tokenizer_svc.media.feature_cache import FeatureCache
from tetrad.tokenizer_svc.media.items import Expansion, MediaFeature, ProcessedItem


def feature(identifier: str, num_bytes: int = 10) -> MediaFeature:
    image = ProcessedItem({"pixel_values": ("uint8", (num_bytes,), bytes(num_bytes))})
    return MediaFeature("image", identifier, image, Expansion("", 0, 0), None)


def test_the_image_that_was_not_used_for_longest_makes_room() -> None:
    cache = FeatureCache(25)
    cache.put(feature("a"))
    cache.put(feature("b"))
    assert cache.get("a") is not None

    cache.put(feature("c"))

    assert [cache.get(name) is not None for name in "abc"] == [True, False, True]
    assert cache.num_bytes == 20


def test_an_image_that_is_put_again_counts_once() -> None:
    cache = FeatureCache(25)

    for _ in range(5):
        cache.put(feature("a"))

    assert cache.num_bytes == 10


def test_an_image_larger_than_the_cache_is_not_kept() -> None:
    cache = FeatureCache(25)
    cache.put(feature("a"))

    cache.put(feature("b", 26))

    assert cache.get("b") is None
    assert cache.get("a") is not None
