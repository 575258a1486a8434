"""Token ids, pixels and grids of the service equal those of transformers' own processor on the same files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.tokenizer_svc.images.conftest import ModelDirectory, ServeModel, chat, noise, png
from tests.tokenizer_svc.images.reference import reference_inputs, reference_processor
from tests.vision_files import KINDS
from tetrad.services.rpc.columns import unpack_u32
from tetrad.v1 import types_pb2

SIZES = ((100, 60), (60, 100), (28, 28), (31, 17), (200, 40))
DTYPES = {types_pb2.DATA_TYPE_UINT8: np.uint8, types_pb2.DATA_TYPE_INT64: np.int64}
PATCH_ROWS = frozenset(kind for kind, its in KINDS.items() if "temporal_patch_size" in its.processor)


def arrays(feature: types_pb2.MultiModalFeature) -> dict[str, NDArray[Any]]:
    """Return the tensors of a feature."""
    return {
        name: np.frombuffer(tensor.inline, DTYPES[tensor.dtype]).reshape(tensor.shape)
        for name, tensor in feature.tensors.items()
    }


def normalised(kind: str, directory: Path, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pixels as the worker normalises them: frames of patch rows are repeated, then scaled as the model's files say."""
    processor = reference_processor(directory).image_processor
    mean, std = (np.asarray(value, np.float32) for value in (processor.image_mean, processor.image_std))
    if kind not in PATCH_ROWS:
        scaled = pixels.astype(np.float32) * np.float32(processor.rescale_factor)
        return (scaled - mean[:, None, None]) / std[:, None, None]
    scaled = pixels.reshape(len(pixels), len(mean), 1, -1).astype(np.float32) * np.float32(processor.rescale_factor)
    scaled = (scaled - mean[:, None, None]) / std[:, None, None]
    return np.repeat(scaled, processor.temporal_patch_size, axis=2).reshape(len(pixels), -1)


def joined(items: list[Mapping[str, NDArray[Any]]], name: str, expected: NDArray[Any]) -> NDArray[Any]:
    """Return the images' tensors of a name as the processor joins them: stacked, or one behind the other."""
    values = [tensors[name] for tensors in items]
    return np.concatenate(values) if values[0].ndim == expected.ndim else np.stack(values).reshape(expected.shape)


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_one_image_equals_transformers(kind: str, model_directory: ModelDirectory, serve_model: ServeModel) -> None:
    directory = model_directory(kind)
    async with serve_model(directory) as stub:
        for width, height in SIZES:
            image = noise(width, height)

            answer = await stub.RenderChat(chat(["before ", png(image), " after"]))

            [feature] = answer.mm_features
            expected = reference_inputs(directory, answer.prompt, [image])
            ours = arrays(feature)
            pixels = normalised(kind, directory, ours["pixel_values"])
            assert unpack_u32(answer.token_ids) == list(expected["input_ids"][0])
            np.testing.assert_allclose(pixels.ravel(), np.asarray(expected["pixel_values"]).ravel(), rtol=0, atol=1e-6)
            for name in ours.keys() - {"pixel_values"}:
                np.testing.assert_array_equal(joined([ours], name, expected[name]), expected[name])


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_two_images_equal_transformers_one_by_one(
    kind: str, model_directory: ModelDirectory, serve_model: ServeModel
) -> None:
    directory = model_directory(kind)
    images = [noise(100, 60), noise(30, 30)]
    async with serve_model(directory) as stub:
        answer = await stub.RenderChat(chat([png(images[0]), "and", png(images[1])]))

    token_ids = unpack_u32(answer.token_ids)
    assert token_ids == list(reference_inputs(directory, answer.prompt, images)["input_ids"][0])
    for image, feature in zip(images, answer.mm_features, strict=True):
        alone = reference_inputs(directory, KINDS[kind].image, [image])
        pixels = normalised(kind, directory, arrays(feature)["pixel_values"])
        np.testing.assert_allclose(pixels.ravel(), np.asarray(alone["pixel_values"]).ravel(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_spans_mark_the_tokens_that_take_an_embedding(
    kind: str, model_directory: ModelDirectory, serve_model: ServeModel
) -> None:
    directory = model_directory(kind)
    async with serve_model(directory) as stub:
        answer = await stub.RenderChat(chat(["a", png(noise(100, 60)), "b", png(noise(30, 30)), "c"]))

    image_id = reference_processor(directory).image_token_id
    token_ids = unpack_u32(answer.token_ids)
    places = []
    for feature in answer.mm_features:
        marks = list(feature.is_embed) or [1] * feature.length
        assert len(marks) == feature.length
        assert (marks[0], marks[-1], sum(marks)) == (1, 1, feature.num_embeds)
        places += [feature.offset + place for place, mark in enumerate(marks) if mark]
    assert places == [place for place, token_id in enumerate(token_ids) if token_id == image_id]


@pytest.mark.parametrize(
    ("mode", "save"), [("RGBA", "PNG"), ("L", "PNG"), ("P", "GIF"), ("RGB", "JPEG"), ("RGB", "WEBP"), ("RGB", "BMP")]
)
async def test_formats_and_modes_are_read(
    mode: str, save: str, model_directory: ModelDirectory, serve_model: ServeModel, tmp_path: Path
) -> None:
    directory = model_directory("llava")
    file = tmp_path / "image"
    noise(28, 28).convert(mode).save(file, save)
    async with serve_model(directory) as stub:
        answer = await stub.RenderChat(chat([file.read_bytes()]))

    with Image.open(file) as image:
        expected = reference_inputs(directory, answer.prompt, [image.convert("RGB")])["pixel_values"]
    pixels = normalised("llava", directory, arrays(answer.mm_features[0])["pixel_values"])
    np.testing.assert_allclose(pixels.ravel(), np.asarray(expected).ravel(), rtol=0, atol=1e-6)
