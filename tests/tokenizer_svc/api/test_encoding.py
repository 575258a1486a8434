"""Encoding and decoding: SmolLM2's ids, equal to transformers' own conversion of the same GGUF file."""

import re
from typing import Any

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, pre_tokenizers, processors

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.tokenizer.facts import LoadedTokenizer, SpecialTokens
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer, Truncation

# SmolLM2 cuts single digits off before anything else; transformers' conversion ignores `tokenizer.ggml.pre`. The two agree
# but for white space before digits and digits outside ASCII.


def test_known_ids_of_smollm2(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]


def test_digits_are_single_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("12345 don't 2024-01-01  x\n\n y")

    assert ids[:12] == [33, 34, 35, 36, 37, 1326, 982, 216, 34, 32, 34, 36]
    assert len(ids) == 22


def test_ids_are_those_of_transformers(tokenizer: Tokenizer, reference: Any, texts: list[str]) -> None:
    comparable = [re.sub(r"\s+(?=\d)", " ", re.sub("[½²٣]", "", text)) for text in texts]

    assert [tokenizer.encode(text) for text in comparable] == reference(comparable)["input_ids"]


def test_ids_are_those_of_transformers_with_the_models_pre_tokenizer(
    tokenizer: Tokenizer, reference: Any, texts: list[str]
) -> None:
    rust = RustTokenizer.from_str(reference.backend_tokenizer.to_str())
    digits = pre_tokenizers.Digits(individual_digits=True)
    rust.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])

    assert [tokenizer.encode(text) for text in texts] == [rust.encode(text).ids for text in texts]


def test_decoding_gives_the_text_back(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_special_tokens_in_a_text_are_single_ids(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user<|im_end|>")

    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "user"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user<|im_end|>"


def test_nul_is_a_character_like_any_other(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\x00b")) == "a\x00b"


def test_token_strings_are_vocabulary_entries(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_strings(tokenizer.encode("The capital")) == ["The", "Ġcapital"]


@pytest.mark.parametrize(("keep_end", "kept"), [(True, slice(-3, None)), (False, slice(0, 3))])
def test_truncation_keeps_the_end_or_the_start(tokenizer: Tokenizer, keep_end: bool, kept: slice) -> None:
    text = "one two three four five six seven"
    whole = tokenizer.encode(text)

    assert tokenizer.encode(text, truncation=Truncation(3, keep_end)) == whole[kept]


def test_truncation_to_nothing_is_empty(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("some text", truncation=Truncation(0)) == []


def test_truncation_keeps_bos_in_front(with_bos: Tokenizer) -> None:
    assert with_bos.encode("a b c d") == [0, 1, 2, 3, 4]
    assert with_bos.encode("a b c d", truncation=Truncation(3)) == [0, 3, 4]
    assert with_bos.encode("a b c d", truncation=Truncation(3, keep_end=False)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("a b c d", 4, [0, 3, 4, 6]),
        ("a b c d", 2, [0, 6]),
        ("a b c d", 1, [4]),
        ("a", 9, [0, 1, 6]),
        ("", 9, [0, 6]),
        ("<s> a </s>", 4, [0, 1, 6, 6]),
        ("<s> <s> </s>", 3, [0, 6, 6]),
    ],
)
def test_truncation_keeps_what_stands_around_a_text(with_bos: Tokenizer, text: str, most: int, kept: list[int]) -> None:
    rust = with_bos.facts.rust
    rust.add_special_tokens(["</s>"])
    special = [(token, rust.token_to_id(token)) for token in ("<s>", "</s>")]
    rust.post_processor = processors.TemplateProcessing(single=["<s>", "$A", "</s>"], special_tokens=special)
    tokenizer = Tokenizer(with_bos.facts)

    assert tokenizer.encode(text, truncation=Truncation(most)) == kept


def test_bos_is_left_out_when_not_asked_for(with_bos: Tokenizer) -> None:
    assert with_bos.encode("a b", add_special_tokens=False) == [1, 2]
    assert with_bos.encode("a b", add_special_tokens=False, truncation=Truncation(1)) == [2]


def test_an_id_outside_the_vocabulary_is_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="49152"):
        tokenizer.decode([5, 49152])


@pytest.fixture
def with_bos() -> Tokenizer:
    """Words a to d with BOS in front."""
    rust = RustTokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2, "c": 3, "d": 4, "?": 5}, unk_token="?"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.add_special_tokens(["<s>"])
    rust.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 0)])
    return Tokenizer(LoadedTokenizer(rust, SpecialTokens(bos="<s>"), (), {}, None))
