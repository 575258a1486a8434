"""Whether the files of a model's directory are those of a model that reads images."""

import json

import pytest

from tetrad.services.errors import ModelError
from tetrad.services.models.media_files import reads_media


@pytest.mark.parametrize("processor", ["preprocessor_config.json", "processor_config.json"])
def test_a_model_with_a_vision_model_and_an_image_processor_reads_media(tmp_path, processor):
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {}}))
    (tmp_path / processor).write_text("{}")

    assert reads_media(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"config.json": {}, "preprocessor_config.json": {}},
        {"config.json": {"vision_config": {}}},
        {"preprocessor_config.json": {}},
    ],
)
def test_other_models_read_text_alone(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))

    assert not reads_media(tmp_path)


def test_a_config_that_is_no_json_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{")

    with pytest.raises(ModelError, match=r"config\.json"):
        reads_media(tmp_path)
