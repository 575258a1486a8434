"""Words: the words of tokens are those of transformers' tokenizer."""

import pytest
from transformers import AutoTokenizer
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from tests.whisper_files import save_whisper
from tetrad.frontend.speech.words import split_words

TEXTS = (
    ' Hello, world! (yes) "quoted" it\'s 3.5 — ok',
    " 漢字、かな。x",
    " a - b -- c",
    "üß ",
    " [ab] ( cd )",
    "  two  spaces",
    " “Quoted” ¿qué?",
    ".",
    " ",
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("words")
    save_whisper(directory)
    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("language", ["english", "japanese"])
@pytest.mark.parametrize("text", TEXTS)
def test_words_are_those_of_transformers(tokenizer, text, language):
    ids = tokenizer.encode(text, add_special_tokens=False)
    words, _, places = _combine_tokens_into_words(tokenizer, ids, language)
    prefixes = [tokenizer.decode(ids[: count + 1]) for count in range(len(ids))]

    found = split_words(prefixes, has_spaces=language == "english")

    assert [part.text for part in found] == words
    assert [(part.first, part.last) for part in found] == [(each[0], each[-1]) for each in places]


def test_bytes_that_are_no_text_are_kept():
    assert [(part.text, part.first, part.last) for part in split_words([" a", " a�", " a�b"], has_spaces=True)] == [
        (" a�b", 0, 2)
    ]


def test_a_character_of_several_tokens_is_not_split():
    found = split_words(["�", "漢", "漢�", "漢字"], has_spaces=False)

    assert [(part.text, part.first, part.last) for part in found] == [("漢", 0, 1), ("字", 2, 3)]
