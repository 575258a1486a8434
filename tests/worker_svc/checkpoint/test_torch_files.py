"""PyTorch files (pytorch_model.bin): read as safetensors are, and never run."""

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.worker_svc.native.test_gguf import logprobs
from tetrad.services.errors import ModelError

FILE = "pytorch_model.bin"


@pytest.fixture
def directory(tmp_path, tiny_llama) -> Path:
    """A copy of the tiny model without weights."""
    return shutil.copytree(tiny_llama[0], tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors*"))


@pytest.fixture
def tensors(tiny_llama) -> dict[str, torch.Tensor]:
    return load_file(tiny_llama[0] / "model.safetensors")


def refusal(directory: Path, load: Callable[[Path], object]) -> str:
    with pytest.raises(ModelError) as caught:
        load(directory)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 600
    return caught.value.message


@pytest.mark.parametrize("is_archive", [True, False])
def test_one_file_is_the_model(is_archive, directory, tensors, tiny, load, make_driver):
    torch.save(tensors, directory / FILE, _use_new_zipfile_serialization=is_archive)

    np.testing.assert_array_equal(logprobs(load(directory), make_driver), logprobs(tiny, make_driver))


def test_shards_under_an_index_are_the_model(directory, tensors, tiny, load, make_driver):
    shards = write_shards(directory, tensors)
    torch.save({"model.norm.weight": torch.zeros(96)}, directory / "pytorch_model-old.bin")

    np.testing.assert_array_equal(logprobs(load(directory), make_driver), logprobs(tiny, make_driver))
    (directory / shards[1]).unlink()
    assert f"lacks '{shards[1]}'" in refusal(directory, load)


def test_safetensors_are_read_where_there_are_both(directory, tiny_llama, load):
    shutil.copy(tiny_llama[0] / "model.safetensors", directory)
    (directory / FILE).write_bytes(b"no tensors at all")

    load(directory)


def test_a_directory_without_weights_names_both_kinds(directory, load):
    assert r"lacks any *.safetensors or pytorch_model*.bin file" in refusal(directory, load)


class Runs:
    """What pickles as a call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("is_archive", [True, False])
def test_a_pickle_that_runs_code_is_refused_and_not_run(is_archive, directory, tensors, load, tmp_path):
    ran = tmp_path / "ran"
    torch.save(tensors | {"model.norm.weight": Runs(ran)}, directory / FILE, _use_new_zipfile_serialization=is_archive)

    assert "could run code: Trying to load unsupported GLOBAL posix.system" in refusal(directory, load)
    assert not ran.exists()


def test_a_bare_pickle_is_refused_and_not_run(directory, load, tmp_path):
    ran = tmp_path / "ran"
    (directory / FILE).write_bytes(pickle.dumps({"model.norm.weight": Runs(ran)}))

    refusal(directory, load)
    assert not ran.exists()


@pytest.mark.parametrize(
    "content",
    [[torch.zeros(3)], {"model": {"norm": torch.zeros(3)}}, {3: torch.zeros(3)}, {"epoch": 5}, torch.zeros(3), {}],
    ids=lambda content: type(content).__name__,
)
def test_what_holds_no_tensors_by_name_is_refused(content, directory, load):
    torch.save(content, directory / FILE)

    refusal(directory, load)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(1).expand(1 << 40), torch.eye(96).to_sparse()],
    ids=["larger than its bytes", "sparse"],
)
def test_a_tensor_that_is_not_plain_is_refused(tensor, directory, tensors, load):
    torch.save(tensors | {"model.norm.weight": tensor}, directory / FILE)

    refusal(directory, load)


@pytest.mark.parametrize("size", [0, 1, 100, 5000, -100])
def test_a_truncated_file_is_one_line(size, directory, tensors, load):
    torch.save(tensors, directory / FILE)
    data = (directory / FILE).read_bytes()
    (directory / FILE).write_bytes(data[:size])

    assert FILE in refusal(directory, load)


def test_an_archive_that_unpacks_to_more_than_it_is_is_refused(directory, tensors, load):
    whole = io.BytesIO()
    torch.save(tensors, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(directory / FILE, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))

    assert "compressed members" in refusal(directory, load)


def write_shards(directory: Path, tensors: dict[str, torch.Tensor]) -> list[str]:
    """Write two shards and their index; return the names of the shards."""
    names = sorted(tensors)
    shards = {f"pytorch_model-0000{n + 1}-of-00002.bin": names[n::2] for n in range(2)}
    for file, held in shards.items():
        torch.save({name: tensors[name] for name in held}, directory / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return list(shards)
