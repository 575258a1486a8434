"""Preprocessing ends as soon as a prompt's images do not fit a message: small requests may not take much memory or time."""

from collections.abc import Mapping
from typing import Any

import pytest

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.feature_cache import FeatureCache
from tetrad.tokenizer_svc.media.items import Expansion, Marks, MediaInput, ProcessedItem
from tetrad.tokenizer_svc.media.kinds import MediaRules
from tetrad.tokenizer_svc.media.preprocessor import Preprocessor
from tetrad.tokenizer_svc.media.prompts import ModelMedia
from tetrad.tokenizer_svc.observability.metrics import TokenizerMetrics

IMAGE_BYTES = 400
RULES = MediaRules(
    modality="image",
    settings={},
    marks=Marks("<image>", "<image>", 1),
    message_text="<image>",
    max_embeds=1,
    expand=lambda _: Expansion("<image>", 1, 1),
)


class Processes:
    """Makes each image of as many bytes, one after the other; `num_processed` counts them."""

    def __init__(self) -> None:
        self.num_processed = 0

    async def process(self, data: bytes, kwargs: Mapping[str, Any]) -> ProcessedItem:
        self.num_processed += 1
        return ProcessedItem({"pixel_values": ("uint8", (IMAGE_BYTES,), bytes(IMAGE_BYTES))})


def model_media(processes: Any) -> ModelMedia:
    tokenizer: Any = None
    preprocessor = Preprocessor(
        RULES,
        processes,
        FeatureCache(1 << 20),
        kwargs=(),
        tokenizer_hash="",
        max_items=999,
        metrics=TokenizerMetrics(),
    )
    return ModelMedia(tokenizer, "model", {"image": preprocessor}, {}, max_message_bytes=3 * IMAGE_BYTES)


async def test_images_that_fit_are_all_preprocessed() -> None:
    prompt = await model_media(Processes()).preprocess([MediaInput("image", bytes([i])) for i in range(3)], "")

    assert len(prompt.features) == 3


async def test_one_image_named_many_times_counts_each_time() -> None:
    processes = Processes()
    maker = model_media(processes)
    await maker.preprocess([MediaInput("image", b"a", "cat")], "")

    with pytest.raises(InvalidRequest) as refused:
        await maker.preprocess([MediaInput("image", b"", "cat")] * 500, "")

    assert processes.num_processed == 1
    assert refused.value.reason == "MESSAGE_TOO_LARGE"
    assert refused.value.field == "media"
    assert refused.value.message.startswith("The prompt with 4 of its 500 preprocessed media takes a message of 1600 bytes; ")
    assert "the limit is 1200 (max_message_bytes)" in refused.value.message
