"""A model's directory, and hostile content in it."""

import os

import pytest

from tetrad.services.errors import ModelError
from tetrad.services.models import model_directory
from tetrad.services.models.model_directory import find_model_file, list_model_files, read_model_json, read_model_text


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"a": 1}')
    (tmp_path / "secret").write_text("secret")
    return directory


def test_a_file_of_the_directory_is_read(model):
    assert read_model_json(model, "config.json") == {"a": 1}
    assert read_model_text(model, "none.json") is None
    assert list_model_files(model, "*.json") == [model / "config.json"]


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "..", ".", "", "sub/../config.json", "a\0b", "\ud800", "9" * 5000]
)
def test_a_name_that_is_a_path_is_refused(model, name):
    with pytest.raises(ModelError, match="not the name of a file"):
        find_model_file(model, name)


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "/dev/zero"])
def test_a_link_out_of_the_directory_is_refused(model, target):
    (model / "chat_template.jinja").symlink_to(target)

    with pytest.raises(ModelError, match="outside of the model's directory"):
        read_model_text(model, "chat_template.jinja")
    with pytest.raises(ModelError, match="outside of the model's directory"):
        list_model_files(model, "*.jinja")


def test_weights_may_be_kept_elsewhere(model, tmp_path):
    (tmp_path / "disk.safetensors").write_bytes(b"numbers")
    (model / "model.safetensors").symlink_to(tmp_path / "disk.safetensors")

    assert list_model_files(model, "*.safetensors", is_weights=True) == [model / "model.safetensors"]
    with pytest.raises(ModelError, match="outside"):
        find_model_file(model, "model.safetensors")


def test_a_link_within_the_directory_is_followed(model):
    (model / "link.json").symlink_to("config.json")

    assert read_model_json(model, "link.json") == {"a": 1}


def test_the_directory_itself_may_be_reached_by_a_link(model, tmp_path):
    (tmp_path / "here").symlink_to(model)

    assert read_model_json(tmp_path / "here", "config.json") == {"a": 1}


def test_a_folder_that_is_a_link_is_refused(model, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (model / "more").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ModelError, match="is a link"):
        list_model_files(model, "*", folder="more")


def test_hugging_faces_cache_links_its_snapshots_to_its_blobs(tmp_path):
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    (snapshot / "additional_chat_templates").mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "123").write_text('{"b": 2}')
    (snapshot / "config.json").symlink_to("../../blobs/123")
    (snapshot / "additional_chat_templates" / "x.jinja").symlink_to("../../../blobs/123")

    assert read_model_json(snapshot, "config.json") == {"b": 2}
    assert len(list_model_files(snapshot, "*.jinja", folder="additional_chat_templates")) == 1


def test_blobs_of_another_repository_are_refused(tmp_path):
    other = tmp_path / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    (other / "123").write_text("{}")
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to(other / "123")

    with pytest.raises(ModelError, match="outside of the model's directory"):
        find_model_file(snapshot, "config.json")


def test_links_in_a_circle_are_refused(model):
    (model / "a.json").symlink_to("b.json")
    (model / "b.json").symlink_to("a.json")

    with pytest.raises(ModelError, match=r"a\.json cannot be read"):
        find_model_file(model, "a.json")


def test_a_pipe_is_refused_rather_than_waited_for(model):
    os.mkfifo(model / "tokenizer.json")

    with pytest.raises(ModelError, match="no regular file"):
        read_model_text(model, "tokenizer.json")


def test_a_folder_under_a_files_name_is_refused(model):
    (model / "tokenizer.json").mkdir()

    with pytest.raises(ModelError, match="no regular file"):
        read_model_text(model, "tokenizer.json")


def test_a_file_beyond_the_limit_is_not_read_whole(model, monkeypatch):
    monkeypatch.setattr(model_directory, "MAX_TEXT_BYTES", 10)
    (model / "big.json").write_text("[" * 11)

    with pytest.raises(ModelError, match="larger than 10 bytes"):
        read_model_text(model, "big.json")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "holds list"),
        (b"{", "is not JSON"),
        (rb'{"bos_token": "\ud83d"}', "holds half of a surrogate pair"),
    ],
    ids=["deep", "bytes", "array", "cut", "surrogate"],
)
def test_what_is_no_json_object_is_one_line(model, data, reason):
    (model / "config.json").write_bytes(data)

    with pytest.raises(ModelError, match=reason) as caught:
        read_model_json(model, "config.json")
    assert "\n" not in caught.value.message
