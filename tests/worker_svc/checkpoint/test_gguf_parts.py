"""GGUF models in several files, as llama.cpp splits them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.worker_svc.native.test_gguf import MIXES, loaded, logprobs, write
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.host import size_on_disk


@pytest.fixture
def first(tmp_path) -> Path:
    """A model of three parts."""
    return write(tmp_path / "m.gguf", *MIXES["q4_k_m"], per_part=8)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        loaded(path, "torch")
    assert "\n" not in caught.value.message
    return caught.value.message


def test_parts_are_one_model(first, tmp_path, make_driver):
    whole = write(tmp_path / "whole.gguf", *MIXES["q4_k_m"])

    assert first.name == "m-00001-of-00003.gguf"
    assert size_on_disk(first) == sum(part.stat().st_size for part in tmp_path.glob("m-*.gguf"))
    np.testing.assert_array_equal(
        logprobs(loaded(first, "native"), make_driver), logprobs(loaded(whole, "native"), make_driver)
    )


def test_missing_parts_are_named(first):
    first.with_name("m-00002-of-00003.gguf").unlink()

    assert "m-00002-of-00003.gguf cannot be found beside it" in refusal(first)


def test_a_later_part_names_the_first(first):
    assert "part 2 of 3; give the path of the first one, m-00001-of-00003.gguf" in refusal(
        first.with_name("m-00002-of-00003.gguf")
    )


def test_a_truncated_part_is_named(first):
    last = first.with_name("m-00003-of-00003.gguf")
    last.write_bytes(last.read_bytes()[:-100])

    assert "m-00003-of-00003.gguf is truncated" in refusal(first)


def test_a_part_by_another_name_is_refused(first, tmp_path):
    assert "3 parts by its metadata, and 1 by its name" in refusal(first.rename(tmp_path / "renamed.gguf"))


@pytest.mark.parametrize("number", [1, 3])
def test_a_part_in_place_of_another_is_refused(first, number):
    shutil.copy(first.with_name(f"m-0000{number}-of-00003.gguf"), first.with_name("m-00002-of-00003.gguf"))

    assert "not parts of one model" in refusal(first)


@pytest.mark.parametrize("name", ["m-00001-of-00000.gguf", "m-00000-of-00000.gguf", "m-00001-of-99999.gguf"])
def test_a_name_that_cannot_be_is_one_line(first, name):
    refusal(first.rename(first.with_name(name)))
