"""Hostile tokenizers: files and texts that make the Rust library panic, loop, or claim impossible ids."""

import json
import time
from pathlib import Path

import pytest

from tests.fuzz.model_bytes import directory_files
from tetrad.services.errors import InvalidRequest, ModelError
from tetrad.tokenizer_svc.loading.gguf_loader import _merges_by_score
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.tokenizer_svc.tokenizer.detokenize_stream import DetokenizeStream, OpenHandle


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, data in directory_files().items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def change(directory: Path, file: str, **fields: object) -> None:
    path = directory / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_normalizer_that_panics_is_found_when_it_is_loaded(directory: Path) -> None:
    change(directory, "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="})

    with pytest.raises(ModelError, match="cannot encode") as caught:
        load_tokenizer(str(directory))
    assert "\n" not in caught.value.message


def test_a_text_that_a_pattern_gives_up_on_is_that_requests_error(directory: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    change(directory, "tokenizer.json", pre_tokenizer=split)
    tokenizer = load_tokenizer(str(directory))

    with pytest.raises(InvalidRequest, match="cannot take this text"):
        tokenizer.encode("a" * 40 + "b")

    assert tokenizer.encode("b")


def test_a_text_with_a_word_that_a_vocabulary_without_an_unknown_token_lacks_is_that_requests_error(directory: Path) -> None:
    words = {"type": "WordLevel", "vocab": {"Hello": 0, "world": 1}, "unk_token": "<unk>"}
    change(directory, "tokenizer.json", model=words, pre_tokenizer={"type": "Whitespace"}, added_tokens=[])
    tokenizer = load_tokenizer(str(directory))

    with pytest.raises(InvalidRequest, match=r"cannot take this text: WordLevel error: Missing \[UNK\] token"):
        tokenizer.encode("Hello there")

    assert tokenizer.encode("Hello world") == [0, 1]


def test_a_decoder_that_panics_fails_its_handle_alone(directory: Path) -> None:
    """The library's Strip decoder cannot strip both ends of a token that is one space."""
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 1}
    change(directory, "tokenizer.json", model={**model, "vocab": {**model["vocab"], " ": 300, "word": 301}}, decoder=strip)
    stream = DetokenizeStream(load_tokenizer(str(directory)))
    for handle in (1, 2, 3):
        stream.open(OpenHandle(handle, []))
    stream.open(OpenHandle(4, [300]))

    first = stream.append([1, 2, 4], [[300], [301], [301]], final_handles=[3])
    second = stream.append([1, 2], [[301], [301]])

    assert [handle for handle, _ in first.failures] == [1, 4]
    assert all("cannot decode the ids: slice index" in error.message for _, error in first.failures)
    assert (first.handles, first.texts) == ([2, 3], ["word", ""])
    assert (second.handles, second.texts) == ([2], ["word"])
    assert [handle for handle, _ in second.failures] == [1]


def test_an_id_that_no_table_can_hold_is_refused(directory: Path) -> None:
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    change(directory, "tokenizer.json", model={**model, "vocab": {**model["vocab"], "far": 2**32 - 1}})

    with pytest.raises(ModelError, match="token id 4294967295"):
        load_tokenizer(str(directory))


@pytest.mark.parametrize("eos", [4_000, [0, 4_000]])
def test_an_end_of_text_that_the_tokenizer_does_not_have_is_refused(directory: Path, eos: object) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))

    with pytest.raises(ModelError, match="ends its texts with 4000"):
        load_tokenizer(str(directory))


def test_a_template_that_is_a_link_to_a_secret_is_not_served(directory: Path) -> None:
    (directory / "chat_template.jinja").symlink_to("/etc/passwd")

    with pytest.raises(ModelError, match="outside of the model's directory"):
        load_tokenizer(str(directory))


@pytest.mark.parametrize("templates", [7, [7], [{"name": []}], [{"name": [], "template": "x"}], {"default": "x"}])
def test_templates_of_another_form_are_none(directory: Path, templates: object) -> None:
    change(directory, "tokenizer_config.json", chat_template=templates)

    assert load_tokenizer(str(directory)).facts.chat_templates == {}


@pytest.mark.parametrize("tokens", [7, True, "x", {"a": 1}, [[]]])
def test_additional_tokens_of_another_form_are_none(directory: Path, tokens: object) -> None:
    change(directory, "tokenizer_config.json", additional_special_tokens=tokens)

    assert load_tokenizer(str(directory)).special_token_ids == (0, 1)


def test_a_vocabulary_with_an_endless_token_is_merged_in_no_time() -> None:
    tokens = ["a", "aa", "a" * 2_000_000]

    began = time.process_time()
    merges = _merges_by_score(tokens, [1, 1, 1], [0.0, 1.0, 2.0])

    assert merges == [("a", "a")]
    assert time.process_time() - began < 1
