"""Llama 4's image processor equals transformers' for images of many sizes, and refuses settings beyond its limits."""

import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.llama4_images import llama4_image_processor
from tests.pictures import picture
from tests.tokenizer_svc.errors import error_of
from tests.tokenizer_svc.media.conftest import StubOf, chat
from tetrad.tokenizer_svc.media.images.llama4_processor import Llama4Processor
from tetrad.tokenizer_svc.media.items import MediaError

SIDE = {"size": {"height": 28, "width": 28}}
UNSCALED = {"do_rescale": False, "do_normalize": False}
WIDE = picture(100, 60)


def images(number: int) -> list[Image.Image]:
    dice = random.Random(7)
    sizes = [(dice.choice((dice.randint(1, 40), dice.randint(1, 300))), dice.randint(1, 150)) for _ in range(number)]
    values = np.random.default_rng(1)
    return [Image.fromarray(values.integers(0, 256, (height, width, 3), np.uint8)) for height, width in sizes]


@pytest.mark.parametrize("settings", [{}, {"max_patches": 5}, {"max_patches": 1}, {"resize_to_max_canvas": True}])
def test_tiles_of_images_of_many_sizes(settings: dict[str, Any]) -> None:
    ours, theirs = Llama4Processor(**SIDE, **settings), llama4_image_processor()(**SIDE, **settings)

    for image in images(80):
        found, expected = ours.preprocess([image]), theirs([image], return_tensors="pt", **UNSCALED)

        assert np.array_equal(found["pixel_values"], expected["pixel_values"].numpy()), image.size
        assert [found["rows"][0], found["cols"][0]] == np.stack(expected["aspect_ratios"]).T.tolist()


async def test_a_request_chooses_the_number_of_tiles(stub_of: StubOf) -> None:
    stub = await stub_of("llama4")
    whole = await stub.RenderChat(chat([WIDE], mm_processor_kwargs_json=b'{"max_patches": 1}'))
    refused = await error_of(stub.RenderChat(chat([picture(190, 60)], mm_processor_kwargs_json=b'{"max_patches": 16}')))

    assert whole.mm_features[0].num_embeds == 4
    assert "embeddings; the limit is 20" in refused.message


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_patches": 65}, "max_patches is 65; it must be a number from 1 to 64"),
        ({"max_patches": 0}, "max_patches is 0"),
        ({"max_patches": "4"}, "max_patches is '4'"),
        ({"resize_to_max_canvas": 1}, "resize_to_max_canvas is 1; it must be true or false"),
    ],
)
def test_other_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(MediaError, match=text):
        Llama4Processor(**SIDE).preprocess(images(1), **settings)


def test_tiles_are_square() -> None:
    with pytest.raises(ValueError, match="size is 16 x 32 pixels; the tiles of this model are square"):
        Llama4Processor(size={"height": 16, "width": 32})
