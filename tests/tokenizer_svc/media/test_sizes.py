"""Numbers of embeddings that rules compute from sizes equal transformers', and none exceeds the announced maximum."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize as glm_resize
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as qwen_resize

from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.llava_next import LLAVA_NEXT
from tetrad.tokenizer_svc.media.images.families.llava_onevision import LLAVA_ONEVISION
from tetrad.tokenizer_svc.media.images.families.merged import GLM, QWEN
from tetrad.tokenizer_svc.media.items import ProcessedItem
from tetrad.worker_svc.media.tower_kinds import TOWER_KINDS

PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def sizes(number: int, most: int, ratio: float) -> list[tuple[int, int]]:
    """Return heights and widths up to `most`, always the same; none is longer than `ratio` times its other side."""
    dice = random.Random(5)
    found = []
    for _ in range(number):
        long_side = dice.randint(1, most)
        short_side = max(1, round(long_side / dice.uniform(1, ratio)))
        found.append((long_side, short_side) if dice.random() < 0.5 else (short_side, long_side))
    return [(height, width) for height, width in found if max(height, width) < ratio * min(height, width)]


def model(**settings: Any) -> Any:
    """Return the facts that rules read, of a model with these settings of its image processor."""
    files = {"config": {}, "vision": {"patch_size": 14}, "mark": "<image>"}
    processor = {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    return SimpleNamespace(settings=settings, processor=processor, **files)


def test_llava_next_has_as_many_as_in_transformers() -> None:
    theirs: Any = object.__new__(LlavaNextProcessor)
    theirs.patch_size, theirs.num_additional_image_tokens = 14, 1
    theirs.image_processor = SimpleNamespace(image_grid_pinpoints=PINPOINTS)
    ours = model(image_grid_pinpoints=PINPOINTS, size={"height": 336, "width": 336}, crop_size={"height": 336, "width": 336})
    most = LLAVA_NEXT.max_embeds(ours)

    for height, width in sizes(500, 3000, 30):
        data = b"".join(number.to_bytes(8, "little") for number in (height, width))
        expansion = LLAVA_NEXT.expand(ours, ProcessedItem({"image_sizes": ("int64", (2,), data)}))

        assert expansion.num_embeds == theirs._get_number_of_features(height, width, 336, 336) - 1
        assert expansion.num_embeds <= most


def test_llava_onevision_has_as_many_as_in_transformers() -> None:
    theirs: Any = object.__new__(LlavaOnevisionProcessor)
    theirs.num_image_tokens, theirs.vision_aspect_ratio = 27 * 27, "anyres_max_9"
    pinpoints = [[384 * rows, 384 * cols] for rows in range(1, 7) for cols in range(1, 7)]
    theirs.image_processor = SimpleNamespace(image_grid_pinpoints=pinpoints)
    ours = model(image_grid_pinpoints=pinpoints, size={"height": 384, "width": 384})
    ours.processor = {"num_image_tokens": 27 * 27, "vision_feature_select_strategy": "full"}
    most = LLAVA_ONEVISION.max_embeds(ours)
    numbers = []

    for height, width in sizes(2000, 3000, 30):
        data = b"".join(number.to_bytes(8, "little") for number in (height, width))
        tensors = {"image_sizes": ("int64", (2,), data), "batch_num_images": ("int64", (1,), (1).to_bytes(8, "little"))}
        numbers.append(LLAVA_ONEVISION.expand(ours, ProcessedItem(tensors)).num_embeds)

        assert numbers[-1] == theirs._get_number_of_features(height, width, 384, 384)

    # The largest has 11 of 12 crops: those of more are made smaller.
    assert 0.95 * most < max(numbers) <= most
    config = SimpleNamespace(
        vision_config=SimpleNamespace(image_size=384, patch_size=14),
        image_grid_pinpoints=pinpoints,
        vision_aspect_ratio="anyres_max_9",
    )
    assert most <= TOWER_KINDS["LlavaOnevisionForConditionalGeneration"].largest(None, config) < 1.05 * most


@pytest.mark.parametrize(
    ("least", "most"), [(56 * 56, 28 * 28 * 1280), (1, 16 * 28 * 28), (256 * 28 * 28, 260 * 28 * 28), (28 * 28, 28 * 28)]
)
@pytest.mark.parametrize(("family", "frames"), [(QWEN, 1), (GLM("Glm4vImageProcessor"), 2)])
def test_no_image_is_larger_than_the_largest(family: Family, frames: int, least: int, most: int) -> None:
    ours = model(
        patch_size=14,
        merge_size=2,
        temporal_patch_size=frames,
        size={"shortest_edge": least * frames, "longest_edge": most * frames},
    )
    limit = family.max_embeds(ours)

    for height, width in sizes(3000, 5000, 199):
        if frames == 1:
            rows, cols = qwen_resize(height, width, 28, least, most)
        else:
            rows, cols = glm_resize(frames, height, width, frames, 28, least * frames, most * frames)

        assert rows * cols // 28**2 <= limit
