"""Hostile images: each fails alone, with a reason, whatever it does to the process that reads it."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from PIL import Image

from tests.pictures import picture
from tests.tokenizer_svc.errors import error_of
from tests.tokenizer_svc.media.conftest import ModelDirectory, ServeModel, StubOf, chat
from tetrad.services.errors import InvalidRequest, Overloaded
from tetrad.v1 import tokenizer_pb2

MODULE = "tetrad.tokenizer_svc.media.images.image_process"
GOOD = picture(40, 30)
ImageProcesses = Callable[[], list[psutil.Process]]


@pytest.fixture
def image_processes() -> ImageProcesses:
    """Returns the processes that read images, without those of other tests."""

    def found() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if MODULE in child.cmdline()]

    others = found()
    return lambda: [process for process in found() if process not in others]


def flat(width: int, height: int) -> bytes:
    """Return a small file of a large image."""
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<svg/>", "the data is no image of these formats: PNG, JPEG, WEBP, GIF, BMP, TIFF"),
        (GOOD[:200], "the image is damaged"),
        (b"\x89PNG\r\n\x1a\n" + b"\x00" * 100, "the "),
        (flat(20_000, 10_000), "20000 x 10000 pixels, 200000000 in all; the limit is 178956970 (max_image_pixels)"),
        (flat(300, 1), "absolute aspect ratio must be smaller than 200, got 300.0"),
    ],
)
async def test_broken_files_are_refused_with_the_reason(stub_of: StubOf, data: bytes, reason: str) -> None:
    stub = await stub_of("qwen2_5_vl")
    refused = await error_of(stub.RenderChat(chat([GOOD, data])))

    assert isinstance(refused, InvalidRequest)
    assert refused.message.startswith("Failed to load image 1: ")
    assert reason in refused.message
    assert refused.field == "media[1]"


async def test_a_long_image_is_not_enlarged_to_gigapixels(stub_of: StubOf) -> None:
    """Its shorter side would become that of the model's images, and the longer one a million times as much."""
    stub = await stub_of("llava")
    refused = await error_of(stub.RenderChat(chat([flat(1_000_000, 1)])))

    assert "the image would be resized to " in refused.message
    assert "pixels; the limit is 67108864" in refused.message


async def test_an_image_that_needs_too_much_memory_fails_alone(
    model_directory: ModelDirectory, serve_model: ServeModel
) -> None:
    async with serve_model(model_directory("llava"), image_memory_bytes=512 << 20) as stub:
        refused, good = await asyncio.gather(
            error_of(stub.RenderChat(chat([flat(13_000, 13_000)]))), stub.RenderChat(chat([GOOD]))
        )

    assert isinstance(refused, InvalidRequest)
    assert f"{512 << 20} bytes (image_memory_bytes)" in refused.message
    assert len(good.mm_features) == 1


async def test_an_image_that_takes_too_long_fails_alone(
    model_directory: ModelDirectory, serve_model: ServeModel, image_processes: ImageProcesses
) -> None:
    async with serve_model(model_directory("llava"), image_timeout_s=1) as stub:
        [process] = image_processes()
        process.suspend()
        refused = await error_of(stub.RenderChat(chat([GOOD])))
        good = await stub.RenderChat(chat([GOOD]))

    assert refused.message == "Failed to load image 0: it took longer than 1 s (image_timeout_s)."
    assert len(good.mm_features) == 1


async def test_an_image_whose_process_was_killed_is_read_by_the_next_one_and_none_outlives_the_service(
    model_directory: ModelDirectory, serve_model: ServeModel, image_processes: ImageProcesses
) -> None:
    """A process has Pillow, and no torch."""
    async with serve_model(model_directory("llava")) as stub:
        [process] = image_processes()
        process.suspend()
        waiting = asyncio.ensure_future(stub.RenderChat(chat([GOOD])))
        await asyncio.sleep(0.2)
        process.kill()
        good = await waiting
        [successor] = image_processes()
        libraries = " ".join(each.path for each in successor.memory_maps())

    assert len(good.mm_features) == 1
    assert successor.pid != process.pid
    assert "libtorch" not in libraries
    assert "PIL" in libraries
    assert not image_processes()


async def test_a_text_model_has_no_such_process(
    serve_model: ServeModel, smollm2: Path, image_processes: ImageProcesses
) -> None:
    async with serve_model(smollm2) as stub:
        info = await stub.GetInfo(tokenizer_pb2.GetInfoRequest())
        refused = await error_of(stub.RenderChat(chat([GOOD, "Hi"])))
        assert not image_processes()

    assert not info.modalities
    assert isinstance(refused, InvalidRequest)
    assert refused.message == f"{smollm2} is not a multimodal model"


async def test_numbers_and_sizes_are_limited(
    model_directory: ModelDirectory, serve_model: ServeModel, image_processes: ImageProcesses
) -> None:
    limits = {"max_images_per_prompt": 2, "max_pending_media_bytes": len(GOOD)}
    async with serve_model(model_directory("llava"), **limits) as stub:
        many = await error_of(stub.RenderChat(chat([GOOD] * 3)))
        [process] = image_processes()
        process.suspend()
        waiting = asyncio.ensure_future(stub.RenderChat(chat([GOOD])))
        await asyncio.sleep(0.2)
        refused = await error_of(stub.RenderChat(chat([GOOD])))
        process.resume()
        await waiting
        info = await stub.GetInfo(tokenizer_pb2.GetInfoRequest())

    assert many.message.startswith("At most 2 image(s) may be provided in one prompt.")
    assert isinstance(refused, Overloaded)
    assert "max_pending_media_bytes" in refused.message
    assert info.modalities[0].max_items == 2


async def test_images_that_fit_no_message_are_refused(model_directory: ModelDirectory, serve_model: ServeModel) -> None:
    async with serve_model(model_directory("smolvlm"), max_message_bytes=1 << 20) as stub:
        refused = await error_of(stub.RenderChat(chat([GOOD] * 120)))

    assert "of its 120 preprocessed media takes a message of" in refused.message
    assert f"the limit is {1 << 20} (max_message_bytes). Send fewer or smaller media" in refused.message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"modality": "audio", "data": b"a"}, "At most 0 audio(s) may be provided in one prompt: "),
        ({"modality": "image"}, "media 0 has neither data nor a uuid."),
    ],
)
async def test_other_media_are_refused(stub_of: StubOf, fields: dict[str, object], reason: str) -> None:
    request = chat([GOOD])
    request.media[0].CopyFrom(tokenizer_pb2.MediaItem(**fields))
    stub = await stub_of("llava")
    refused = await error_of(stub.RenderChat(request))

    assert refused.message.startswith(reason)


async def test_a_model_whose_processor_fails_is_served_without_images(
    model_directory: ModelDirectory, serve_model: ServeModel, tmp_path: Path
) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    for file in model_directory("llava").iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    (directory / "preprocessor_config.json").write_text('{"image_processor_type": "NewImageProcessor", "do_resize": true}')
    async with serve_model(directory) as stub:
        text = await stub.RenderChat(chat(["Hi"]))
        refused = await error_of(stub.RenderChat(chat([GOOD])))

    assert text.prompt
    assert "cannot read image input" in refused.message
    assert "NewImageProcessor" in refused.message


async def test_a_processor_under_its_former_name(
    model_directory: ModelDirectory, serve_model: ServeModel, tmp_path: Path
) -> None:
    for file in model_directory("qwen2_5_vl").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "preprocessor_config.json"
    path.write_text(path.read_text().replace("Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"))

    async with serve_model(tmp_path) as stub:
        answer = await stub.RenderChat(chat([GOOD]))

    assert len(answer.mm_features) == 1
