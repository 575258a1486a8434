"""Token ids, pixels and grids of the service equal those of transformers' own processor on the same files.

Images and videos are in one file, because their tests share the service of each kind of model.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoConfig
from transformers.models.smolvlm import processing_smolvlm
from transformers.video_utils import VideoMetadata

from tests.grids import grid
from tests.pictures import picture
from tests.tokenizer_svc.media.conftest import ModelDirectory, StubOf, chat
from tests.tokenizer_svc.media.video.test_video_prompts import chat as video_chat
from tests.tokenizer_svc.media.video.test_video_prompts import io as io_kwargs
from tests.video_files import video
from tests.vision_kinds import KINDS
from tests.vision_reference import load_processor
from tetrad.services.rpc.columns import unpack_u32
from tetrad.tokenizer_svc.media.images.families.table import FAMILIES as IMAGE_FAMILIES
from tetrad.tokenizer_svc.media.video.families import FAMILIES as VIDEO_FAMILIES
from tetrad.v1 import tokenizer_pb2, types_pb2

SIZES = ((100, 60), (60, 100), (28, 28), (31, 17), (200, 40))
DTYPES = {types_pb2.DATA_TYPE_FLOAT32: np.float32, types_pb2.DATA_TYPE_UINT8: np.uint8, types_pb2.DATA_TYPE_INT64: np.int64}
LIKE_OTHERS = {
    **dict.fromkeys(("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), "qwen3_vl"),
    "internvl of qwen3": "internvl",
    "mistral3 of ministral3": "mistral3",
    "glm4v_moe": "glm4v",
}
"""Kinds whose text model alone differs from that of another kind, and that kind: their files for media are the same."""
VIDEO_KINDS = [kind for kind, its in KINDS.items() if its.video]
LISTED = frozenset({"rows", "cols", "num_patches", "num_crops", "pixel_attention_mask"})
"""What transformers' processors return besides the tensors of the model's towers, or is all ones for one image."""


def arrays(feature: types_pb2.MultiModalFeature) -> dict[str, NDArray[Any]]:
    """Return the tensors of a feature."""
    return {
        name: np.frombuffer(tensor.inline, DTYPES[tensor.dtype]).reshape(tensor.shape)
        for name, tensor in feature.tensors.items()
    }


def normalised(processor: Any, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pixels as the worker normalises them: frames of patch rows are repeated, all are scaled as the model's files say.

    Args:
        processor: transformers' image processor.
        pixels: rows of patches [N, 3 * side * side], or images [..., 3, H, W].
    """
    if hasattr(processor, "normalised"):
        return processor.normalised(pixels)
    mean, std = (np.asarray(value, np.float32)[:, None, None] for value in (processor.image_mean, processor.image_std))
    frames = getattr(processor, "temporal_patch_size", None)
    shaped = pixels if frames is None else pixels.reshape(len(pixels), len(mean), 1, -1)
    scaled = (shaped.astype(np.float32) * np.float32(processor.rescale_factor) - mean) / std
    return scaled if frames is None else np.repeat(scaled, frames, axis=2).reshape(len(pixels), -1)


def expected(processor: Any, prompt: str, files: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    """Return transformers' inputs of a prompt with images."""
    images = [Image.open(io.BytesIO(data)).convert("RGB") for data in files]
    options = {"return_tensors": "pt", "add_special_tokens": False, "return_mm_token_type_ids": False}
    found = processor(images=[images], text=[prompt], **options)
    return {name: np.asarray(value) for name, value in found.items()}


def assert_equal(processor: Any, answer: tokenizer_pb2.RenderChatResponse, files: Sequence[bytes]) -> None:
    """Compare a response with transformers' inputs: the ids of the prompt, and each image as if it were alone, or beside
    another one of the same size.
    """
    assert unpack_u32(answer.token_ids) == list(expected(processor, answer.prompt, files)["input_ids"][0])
    placeholder = getattr(processor, "boi_token", processor.image_token)
    for feature, data in zip(answer.mm_features, files, strict=True):
        ours, theirs = arrays(feature), expected(processor, placeholder, [data])
        if len(files) > 1 and "batch_num_images" in theirs:
            theirs = expected(processor, placeholder * 2, [data, data])
            theirs = {name: value[:1] for name, value in theirs.items()}
        pixels = normalised(processor.image_processor, ours.pop("pixel_values"))
        np.testing.assert_allclose(pixels.ravel(), theirs["pixel_values"].ravel(), rtol=0, atol=1e-6)
        named = {name for name in processor.image_processor.model_input_names if name in theirs}
        assert named - LISTED == {"pixel_values", *ours}
        for name, value in ours.items():
            np.testing.assert_array_equal(value, theirs[name][0])


def expansion(directory: Path, feature: types_pb2.MultiModalFeature, about: Mapping[str, Any]) -> str:
    """Return the text in which transformers writes a video."""
    processor: Any = load_processor(directory)
    processor.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    tensors = arrays(feature)
    frames = tensors["pixel_values_videos"]
    inputs = {"pixel_values_videos": [frames], "pixel_values": frames[None], "video_metadata": [VideoMetadata(**about)]}
    inputs["video_grid_thw"] = [tensors.get("video_grid_thw")]
    with patch.object(processing_smolvlm, "num2words", str):
        text: str = processor.replace_video_token(inputs, 0)
    return text.replace("of 8 frames", "of eight frames")  # the package that writes numbers is not installed


def assert_marked(answer: tokenizer_pb2.RenderChatResponse, mark_id: int) -> None:
    """Check that the spans of all images mark all tokens that an embedding replaces, and no others."""
    places = []
    for feature in answer.mm_features:
        marks = list(feature.is_embed) or [1] * feature.length
        assert len(marks) == feature.length
        assert (marks[0], marks[-1], sum(marks)) == (1, 1, feature.num_embeds)
        places += [feature.offset + place for place, mark in enumerate(marks) if mark]
    assert places == [place for place, token_id in enumerate(unpack_u32(answer.token_ids)) if token_id == mark_id]


@pytest.mark.parametrize("kind", grid(sorted(KINDS), lambda kind: kind not in LIKE_OTHERS))
async def test_prompts_with_images_equal_transformers(kind: str, model_directory: ModelDirectory, stub_of: StubOf) -> None:
    directory = model_directory(kind)
    processor = load_processor(directory)
    mark_id = AutoConfig.from_pretrained(directory).image_token_id
    first, *others = [picture(width, height, seed) for seed, (width, height) in enumerate(SIZES)]
    stub = await stub_of(kind)
    info = await stub.GetInfo(tokenizer_pb2.GetInfoRequest())
    for files in ([first], *([first, other] for other in others)):
        answer = await stub.RenderChat(chat(["before\n", files[0], "\nafter ", *files[1:], "."]))

        assert_equal(processor, answer, files)
        assert_marked(answer, mark_id)
        most = info.modalities[0].max_embeds_per_item
        assert all(feature.num_embeds <= most for feature in answer.mm_features)


@pytest.mark.parametrize("kind", grid(sorted(VIDEO_KINDS), lambda kind: kind not in LIKE_OTHERS))
async def test_token_ids_of_videos_are_those_of_transformers(
    kind: str, stub_of: StubOf, model_directory: ModelDirectory
) -> None:
    stub = await stub_of(kind)
    request = video_chat("What is ", ("video", video(40)), "?", media_io_kwargs_json=io_kwargs(num_frames=8, fps=-1))

    answer = await stub.RenderChat(request)

    [feature] = answer.mm_features
    about = {"total_num_frames": 40, "fps": 10.0, "duration": 4.0, "frames_indices": [0, 5, 11, 16, 22, 27, 33, 39]}
    [placeholder] = [each for each in ("<|video_pad|>", "<|video|>", "<video>") if each in KINDS[kind].video]
    text = answer.prompt.replace(placeholder, expansion(model_directory(kind), feature, about))
    expected = load_processor(model_directory(kind)).tokenizer(text, add_special_tokens=False)
    token_ids = unpack_u32(answer.token_ids)
    assert token_ids == expected["input_ids"]
    its = token_ids[feature.offset : feature.offset + feature.length]
    is_embed = list(feature.is_embed) or [1] * len(its)
    assert len({token for token, takes in zip(its, is_embed, strict=True) if takes}) == 1
    assert sum(is_embed) == feature.num_embeds
    assert (is_embed[0], is_embed[-1], feature.modality) == (1, 1, "video")


@pytest.mark.parametrize("kind", LIKE_OTHERS)
def test_a_kind_whose_text_model_alone_differs_has_the_rules_of_the_other(kind: str) -> None:
    model, other = (name.split(" of ")[0] for name in (kind, LIKE_OTHERS[kind]))

    assert replace(KINDS[kind], wrapper="") == replace(KINDS[LIKE_OTHERS[kind]], wrapper="")
    assert IMAGE_FAMILIES[model] == IMAGE_FAMILIES[other]
    assert VIDEO_FAMILIES.get(model) == VIDEO_FAMILIES.get(other)


@pytest.mark.parametrize(
    ("mode", "save"), [("RGBA", "PNG"), ("L", "PNG"), ("P", "GIF"), ("RGB", "JPEG"), ("RGB", "WEBP"), ("RGB", "BMP")]
)
async def test_formats_and_modes_are_read(
    mode: str, save: str, model_directory: ModelDirectory, stub_of: StubOf, tmp_path: Path
) -> None:
    file = tmp_path / "image"
    Image.open(io.BytesIO(picture(28, 28))).convert(mode).save(file, save)
    stub = await stub_of("llava")
    answer = await stub.RenderChat(chat([file.read_bytes()]))

    assert_equal(load_processor(model_directory("llava")), answer, [file.read_bytes()])
