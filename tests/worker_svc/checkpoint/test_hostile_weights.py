"""Hostile weights: each of these once crashed the worker, hung it, or was answered with INTERNAL."""

import json
import shutil
import struct

import pytest

from tests.fuzz.model_bytes import CONFIG, directory_files, write_gguf
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.gguf_metadata import config_from_metadata
from tetrad.worker_svc.checkpoint.open import open_source
from tetrad.worker_svc.families.registry import supported_config


@pytest.fixture
def directory(tmp_path):
    for name, data in directory_files().items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_the_files_of_these_tests_are_good_when_nobody_touches_them(directory, load):
    assert load(directory).info.num_layers == 1


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "sub/model-1.safetensors"])
def test_an_index_cannot_name_files_outside_of_the_directory(directory, name):
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))

    with pytest.raises(ModelError, match="not the name of a file"):
        open_source(directory)


def test_a_shard_may_be_kept_on_another_disk(directory, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "weights"
    shutil.move(directory / "model-1.safetensors", elsewhere)
    (directory / "model-1.safetensors").symlink_to(elsewhere)

    assert open_source(directory).has("model.norm.weight")


@pytest.mark.parametrize("weight_map", [{}, [], None, {"a": 1}, {"a": None}, {"a": ["model-1.safetensors"]}, {"a": "\n\n"}])
def test_an_index_of_another_form_is_one_line(directory, weight_map):
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    with pytest.raises(ModelError) as caught:
        open_source(directory)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 0},
        {"hidden_size": float("inf")},
        {"hidden_size": -32},
        {"hidden_size": 10**300},
        {"num_hidden_layers": 10**9},
        {"vocab_size": 2**40},
        {"head_dim": 15},
        {"max_position_embeddings": 10**12},
        {"rope_parameters": [1]},
        {"rope_parameters": {"rope_theta": None}},
        {"rope_scaling": "linear"},
        {"architectures": 7},
        {"architectures": [["LlamaForCausalLM"]]},
        {"layer_types": [{}], "sliding_window": 4},
    ],
    ids=str,
)
def test_an_impossible_config_is_one_line(change):
    with pytest.raises(ModelError) as caught:
        supported_config({**CONFIG, **change})
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "scaling",
    [{"rope_type": ["linear"]}, {"rope_type": "linear"}, {"rope_type": "linear", "factor": "x"}, {"rope_type": "llama3"}]
    + [{"rope_type": "factors", "factors": factors} for factors in ([1.0, 2.0], "x", None, [[]])],
    ids=str,
)
def test_a_rope_scaling_of_another_form_is_one_line(directory, load, scaling):
    (directory / "config.json").write_text(json.dumps({**CONFIG, "rope_scaling": scaling}))

    with pytest.raises(ModelError, match="Rope scaling"):
        load(directory)


def test_random_weights_beyond_the_memory_are_refused_before_they_are_drawn(directory, load):
    overrides = json.dumps({"hidden_size": 1 << 17, "intermediate_size": 1 << 19, "num_hidden_layers": 100})

    with pytest.raises(ModelError, match="Random weights of this config take"):
        load(directory, random_weights=True, hf_overrides_json=overrides)


@pytest.fixture
def gguf_bytes(tmp_path):
    return write_gguf(tmp_path / "whole.gguf")


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def line_of(name: bytes, *shape: int, kind: int) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}QI", len(shape), *shape, kind)


NORM = b"blk.0.attn_norm.weight"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (line_of(NORM, 32, kind=0), line_of(NORM, 2**60, kind=0), "truncated"),
        (line_of(NORM, 32, kind=0), line_of(NORM, 32, kind=4000), "type that is not known"),
        (line_of(NORM, 32, kind=0), line_of(NORM, 0, kind=0), "shape"),
        (line_of(b"token_embd.weight", 32, 272, kind=0), line_of(b"token_embd.weight", 2**33, 2**33, kind=0), "truncated"),
        (line_of(b"rope_freqs.weight", 8, kind=0), line_of(b"rope_freqs.weight", 2000, kind=0), "more than 1024 values"),
    ],
    ids=["long", "type", "empty", "overflow", "factors"],
)
def test_a_tensor_that_lies_about_itself_is_one_line(tmp_path, gguf_bytes, load, old, new, reason):
    path = tmp_path / "m.gguf"
    path.write_bytes(replaced(gguf_bytes, old, new) + bytes(10_000))

    with pytest.raises(ModelError, match=reason) as caught:
        load(path)
    assert "\n" not in caught.value.message


def test_metadata_of_another_type_is_one_line(tmp_path, gguf_bytes, load):
    """A list where a name is expected cannot be looked up in a table of names."""
    path = tmp_path / "m.gguf"
    key, array = b"general.architecture", struct.pack("<IIQ", 9, 0, 9)
    path.write_bytes(replaced(gguf_bytes, key + struct.pack("<IQ", 8, 5) + b"llama", key + array + bytes(9)))

    with pytest.raises(ModelError, match="architecture"):
        load(path)


@pytest.mark.parametrize("architecture", ["llama", "mamba2", "lfm2", "qwen35", "deepseek2"])
@pytest.mark.parametrize("count", [None, 2**32 - 1, "many", [3], float("nan"), float("inf")], ids=str)
def test_a_number_of_blocks_that_no_model_has_is_one_line(architecture, count):
    """Families with states look at the tensors of each block: 2^32 blocks would take hours."""
    metadata = {"general.architecture": architecture, f"{architecture}.block_count": count}
    metadata |= {f"{architecture}.{key}": 4 for key in ("expert_count", "ssm.time_step_rank", "ssm.inner_size")}

    with pytest.raises(ModelError, match=r"num_layers is|block_count .* is not supported") as caught:
        config_from_metadata(metadata.get, lambda _: False, vocab_size=3, is_tied=True)
    assert "\n" not in caught.value.message
