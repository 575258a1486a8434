"""Preprocessing ends as soon as a prompt's images do not fit a message: small requests may not take much memory or time."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.feature_cache import FeatureCache
from tetrad.tokenizer_svc.media.images.families.family import Expansion, Family
from tetrad.tokenizer_svc.media.images.families.model import ProcessedImage
from tetrad.tokenizer_svc.media.items import ImageItem
from tetrad.tokenizer_svc.media.preprocessor import ImagePreprocessor
from tetrad.tokenizer_svc.observability.metrics import TokenizerMetrics

IMAGE_BYTES = 400
MODEL: Any = SimpleNamespace(settings={}, mark="<image>", mark_id=1)
FAMILY = Family("CLIPImageProcessor", lambda *_: Expansion("<image>", 1, 1), lambda _: 1)


class Processes:
    """Makes each image of as many bytes, one after the other; `num_processed` counts them."""

    def __init__(self) -> None:
        self.num_processed = 0

    async def process(self, data: bytes, kwargs: Mapping[str, Any]) -> ProcessedImage:
        self.num_processed += 1
        return ProcessedImage({"pixel_values": ("uint8", (IMAGE_BYTES,), bytes(IMAGE_BYTES))})


def preprocessor(processes: Any) -> ImagePreprocessor:
    return ImagePreprocessor(
        MODEL,
        FAMILY,
        processes,
        FeatureCache(1 << 20),
        tokenizer_hash="",
        max_images=999,
        max_message_bytes=3 * IMAGE_BYTES,
        metrics=TokenizerMetrics(),
    )


async def test_images_that_fit_are_all_preprocessed() -> None:
    features = await preprocessor(Processes()).preprocess([ImageItem(bytes([i])) for i in range(3)], {})

    assert len(features) == 3


async def test_one_image_named_many_times_counts_each_time() -> None:
    processes = Processes()
    maker = preprocessor(processes)
    await maker.preprocess([ImageItem(b"a", "cat")], {})

    with pytest.raises(InvalidRequest) as refused:
        await maker.preprocess([ImageItem(b"", "cat")] * 500, {})

    assert processes.num_processed == 1
    assert refused.value.reason == "MESSAGE_TOO_LARGE"
    assert refused.value.field == "media"
    assert refused.value.message.startswith(
        "The prompt with 4 of its 500 preprocessed image(s) takes a message of 1600 bytes; "
    )
    assert "the limit is 1200 (max_message_bytes)" in refused.value.message
