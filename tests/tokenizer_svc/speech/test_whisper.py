"""Whisper's prompts have the tokens that transformers' generation gives the decoder, and those of OpenAI's prompts before."""

import json

import pytest

from tests.whisper_files import END, LANGUAGES, NO_TIMES, PREVIOUS, START
from tetrad.services.errors import InvalidRequest, ModelError
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.tokenizer_svc.media.items import ProcessedItem
from tetrad.tokenizer_svc.speech.plans import Silence, SpeechRequest
from tetrad.tokenizer_svc.speech.whisper import WhisperPrompts

ITEM = ProcessedItem({})


@pytest.fixture(scope="module")
def tokenizer(whisper_tokenizer):
    return whisper_tokenizer


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return WhisperPrompts(tokenizer)


def changed(whisper, tmp_path, name, **values):
    """Return the tokenizer of a copy of the model, with other values in one of its files."""
    for each in whisper.glob("*.json"):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    path = tmp_path / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return load_tokenizer(str(tmp_path))


def without_timestamps(whisper, tmp_path):
    """Return the tokenizer of a copy of the model whose tokenizer has no tokens for timestamps."""
    tokens = json.loads((whisper / "tokenizer.json").read_text())["added_tokens"]
    kept = [each for each in tokens if not each["content"].startswith("<|0.") and not each["content"][2:3].isdigit()]
    return changed(whisper, tmp_path, "tokenizer.json", added_tokens=kept)


def written(tokenizer, prompts, **fields):
    """Return the prompt of a request, as texts of tokens."""
    ids, placed = prompts.plan(SpeechRequest(b"x", **fields)).place(ITEM, "name")
    assert (placed.offset, placed.length, placed.feature.expansion.num_embeds) == (0, 0, 1500)
    return tokenizer.token_strings(ids)


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"language": "de"}, ["<|de|>", "<|transcribe|>", NO_TIMES]),
        ({"language": "DE"}, ["<|de|>", "<|transcribe|>", NO_TIMES]),
        ({"language": "de", "task": "translate"}, ["<|de|>", "<|translate|>", NO_TIMES]),
        ({"language": "de", "with_timestamps": True}, ["<|de|>", "<|transcribe|>"]),
        ({"language": "de", "task": "translate", "to_language": "en"}, ["<|de|>", "<|translate|>", NO_TIMES]),
        ({}, ["<|transcribe|>", NO_TIMES]),
    ],
)
def test_the_prompt_has_the_language_and_the_task(tokenizer, prompts, fields, texts):
    assert written(tokenizer, prompts, **fields) == [START, *texts]


def test_an_unknown_language_is_left_to_the_model(tokenizer, prompts):
    plan = prompts.plan(SpeechRequest(b"x"))

    assert plan.language_index == 1
    assert tokenizer.token_strings(plan.detection.prompt_token_ids) == [START]
    assert tokenizer.token_strings(list(plan.detection.languages)) == [f"<|{code}|>" for code in LANGUAGES]
    assert list(plan.detection.languages.values()) == list(LANGUAGES)


def test_earlier_text_comes_first(tokenizer, prompts):
    plan = prompts.plan(SpeechRequest(b"x", prompt=" Tetrad ", with_timestamps=True))
    ids, _ = plan.place(ITEM, "name")

    assert ids[0] == tokenizer.token_id(PREVIOUS)
    assert tokenizer.decode(ids[1 : plan.language_index - 1]) == " Tetrad"
    assert ids[plan.language_index - 1] == tokenizer.token_id(START)
    assert plan.silence == Silence(tokenizer.token_id("<|nospeech|>"), plan.language_index - 1)
    assert (plan.first_timestamp_id, plan.timestamp_step_s) == (tokenizer.token_id("<|0.00|>"), 0.02)


def test_the_model_may_not_write_what_its_files_suppress(whisper, tmp_path):
    lists = {"suppress_tokens": [3, 4, -1], "begin_suppress_tokens": [5, 1 << 20], "max_initial_timestamp_index": 25}
    tokenizer = changed(whisper, tmp_path, "generation_config.json", **lists)

    plain, timed = (WhisperPrompts(tokenizer).plan(SpeechRequest(b"x", with_timestamps=timed)).rules for timed in (False, True))

    assert (plain.suppressed_ids, plain.suppressed_first_ids) == ([3, 4], [5])
    assert timed.suppressed_ids == [3, 4, tokenizer.token_id(NO_TIMES)]
    assert timed.max_initial_timestamp == 25


def test_timestamps_need_no_tokens_of_the_tokenizer(whisper, tmp_path):
    """OpenAI's first files have tokens up to <|notimestamps|>, and the model 1501 ids more."""
    tokenizer = without_timestamps(whisper, tmp_path)
    last = tokenizer.token_id(NO_TIMES)

    plan = WhisperPrompts(tokenizer).plan(SpeechRequest(b"x", with_timestamps=True))

    assert (plan.first_timestamp_id, plan.rules.suppressed_ids) == (last + 1, [last])


def test_of_long_earlier_text_the_end_is_kept(tokenizer, prompts):
    ids, _ = prompts.plan(SpeechRequest(b"x", prompt="x" * 3000 + "end", language="de")).place(ITEM, "name")

    assert len(ids) == 1 + 223 + 4
    assert tokenizer.decode(ids[:-4]).endswith("xend")


@pytest.mark.parametrize(
    ("fields", "message", "field"),
    [
        ({"language": "xx"}, r"Unsupported language: 'xx'. Must be one of \['de', 'en', 'fr', 'ja'\].", "language"),
        (
            {"language": "en", "to_language": "de"},
            "to_language 'de' is not supported: this model transcribes in",
            "to_language",
        ),
        ({"to_language": "de", "task": "translate"}, "to_language 'de' is not supported: this model translates", "to_language"),
        ({"prompt": f"a{END}b"}, r"prompt must have no special tokens, got '<\|endoftext\|>'.", "prompt"),
    ],
    ids=["language", "another language", "a translation", "special tokens"],
)
def test_what_the_model_cannot_do_is_refused(prompts, fields, message, field):
    with pytest.raises(InvalidRequest, match=message) as caught:
        prompts.plan(SpeechRequest(b"x", **fields))

    assert caught.value.field == field


class TestEnglishModel:
    @pytest.fixture
    def english(self, whisper, tmp_path):
        return changed(whisper, tmp_path, "generation_config.json", is_multilingual=False)

    def test_it_has_no_languages_and_no_tasks(self, english):
        prompts = WhisperPrompts(english)

        assert prompts.tasks == ("transcribe",)
        assert written(english, prompts) == [START, NO_TIMES]
        assert prompts.plan(SpeechRequest(b"x", language="en")).language == "en"

    def test_it_knows_no_other_language(self, english):
        with pytest.raises(InvalidRequest, match=r"Must be one of \['en'\]"):
            WhisperPrompts(english).plan(SpeechRequest(b"x", language="de"))


def test_languages_are_found_without_a_list(whisper, tmp_path):
    tokenizer = changed(whisper, tmp_path, "generation_config.json", lang_to_id=None)

    assert written(tokenizer, WhisperPrompts(tokenizer), language="ja")[1] == "<|ja|>"


def test_another_tokenizer_is_refused(smollm2):
    with pytest.raises(ModelError, match="has no token"):
        WhisperPrompts(load_tokenizer(str(smollm2)))
