"""Pixels become the values of transformers' image processors, bit for bit."""

import numpy as np
import pytest
from transformers.image_transforms import normalize, rescale

from tests.llama4_images import llama4_image_processor
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.media.pixels import Normalization

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3, 20, 30), dtype=np.uint8)


def test_values_are_those_of_transformers():
    found = Normalization(MEAN, STD, 1 / 255).of(PIXELS, 1)

    for image, expected in zip(found, PIXELS, strict=True):
        theirs = normalize(rescale(expected, 1 / 255, input_data_format="channels_first"), MEAN, STD)
        assert np.array_equal(image, theirs)
    assert found.dtype == np.float32


def test_values_of_llama_4_are_rounded_in_each_step():
    processor = llama4_image_processor()(rescale_factor=1 / 255, image_mean=MEAN, image_std=STD)

    found = Normalization(MEAN, STD, 1 / 255, is_rounded=True).of(PIXELS, 1)

    assert np.array_equal(found, processor.normalised(PIXELS))


def test_a_processor_that_only_rescales_or_does_neither():
    rescaled = np.stack([rescale(each, 1 / 127, input_data_format="channels_first") for each in PIXELS])
    assert np.array_equal(Normalization(None, None, 1 / 127).of(PIXELS, 1), rescaled)
    assert np.array_equal(Normalization(None, None, None).of(PIXELS, 1), PIXELS)


def test_floats_are_normalised_already():
    values = PIXELS.astype(np.float32)

    assert np.array_equal(Normalization(MEAN, STD, 1 / 255).of(values, 1), values)


@pytest.mark.parametrize(
    ("pixels", "reason"), [(PIXELS.astype(np.int64), "type int64 in 3"), (PIXELS[:, :2], "type uint8 in 2")]
)
def test_pixels_that_the_model_does_not_take(pixels, reason):
    with pytest.raises(InvalidRequest, match=f"Pixels of {reason} channels; the model takes uint8 in 3"):
        Normalization(MEAN, STD, 1 / 255).of(pixels, 1)
