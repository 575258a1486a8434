"""Limits that the engine arguments choose by the files of the model."""

import json

import pytest

from tetrad import EngineArgs

IMAGE_FILES = {"config.json": {"vision_config": {}}, "preprocessor_config.json": {}}


def message_limits(settings):
    return [each.max_message_bytes for each in (settings.tokenizer, settings.engine_core, settings.worker, settings.frontend)]


def write_files(directory, files):
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))


def test_services_of_a_model_that_reads_images_take_larger_messages(tmp_path, monkeypatch):
    write_files(tmp_path, IMAGE_FILES)
    monkeypatch.setenv("TETRAD_WORKER_MAX_MESSAGE_BYTES", str(40 << 20))

    settings = EngineArgs(model=str(tmp_path), device="sim").stack_settings()

    assert message_limits(settings) == [256 << 20, 256 << 20, 40 << 20, 256 << 20]


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        ({"config.json": {}}, {}),
        (IMAGE_FILES, {"language_model_only": True}),
        (IMAGE_FILES, {"limit_mm_per_prompt": {"image": 0, "audio": 0, "video": 0}}),
    ],
)
def test_services_of_text_keep_the_limit_of_messages(tmp_path, files, arguments):
    write_files(tmp_path, files)

    assert message_limits(EngineArgs(model=str(tmp_path), device="sim", **arguments).stack_settings()) == [32 << 20] * 4


def test_embeddings_need_larger_messages_where_no_files_are_taken(tmp_path):
    write_files(tmp_path, IMAGE_FILES)
    limits = {"limit_mm_per_prompt": {"image": 0, "audio": 0, "video": 0}, "enable_mm_embeds": True}

    assert message_limits(EngineArgs(model=str(tmp_path), device="sim", **limits).stack_settings()) == [256 << 20] * 4
