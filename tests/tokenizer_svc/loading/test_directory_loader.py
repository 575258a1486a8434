"""Hugging Face directories: the same tokenizer as from the GGUF file, and errors of broken ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from tetrad.services.errors import ModelError, NotFound
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def saved(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's tokenizer as transformers saves it."""
    path = tmp_path_factory.mktemp("hf")
    reference.save_pretrained(path)
    return path


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def test_ids_are_those_of_transformers(saved: Path, reference: Any, texts: list[str]) -> None:
    tokenizer = load_tokenizer(str(saved))

    assert [tokenizer.encode(text) for text in texts] == reference(texts)["input_ids"]


def test_facts_are_those_of_the_gguf_file(saved: Path, tokenizer: Tokenizer) -> None:
    loaded = load_tokenizer(str(saved))

    assert loaded.facts.special == tokenizer.facts.special
    assert loaded.facts.chat_templates == tokenizer.facts.chat_templates
    assert loaded.special_token_ids == tokenizer.special_token_ids
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.facts.eos_token_ids == (2,)
    assert loaded.facts.max_length is None


DECODER = {"6": {"content": "<add>", "special": False}}


@pytest.mark.parametrize(
    ("config", "special_map"),
    [
        ({"sep_token": "<sep>", "cls_token": "<cls>", "mask_token": "<mask>"}, {}),
        ({"image_token": "<image>"}, {}),
        ({"extra_special_tokens": ["<image>", "<add>"]}, {}),
        ({"extra_special_tokens": {"image_token": "<image>"}}, {}),
        ({"additional_special_tokens": ["<add>"]}, {}),
        ({"additional_special_tokens": ["<add>"], "extra_special_tokens": []}, {}),
        ({"pad_token": None}, {"pad_token": "<add>"}),
        ({"pad_token": "<image>"}, {"pad_token": "<add>"}),
        ({"pad_token": "<image>", "added_tokens_decoder": DECODER}, {"pad_token": "<add>", "eos_token": "<sep>"}),
    ],
)
def test_special_tokens_are_those_of_transformers(tmp_path: Path, config: dict[str, Any], special_map: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    words = ["a", "<s>", "<sep>", "<cls>", "<mask>", "<image>", "<add>"]
    rust = RustTokenizer(models.WordLevel({word: token_id for token_id, word in enumerate(words)}, unk_token="a"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", **config}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special_map))
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))

    ours = load_tokenizer(str(tmp_path))

    assert ours.facts.special.named() == theirs.special_tokens_map
    assert ours.special_token_ids == tuple(sorted(theirs.all_special_ids))
    assert ours.encode("".join(words)) == theirs("".join(words))["input_ids"]


def test_a_token_that_the_config_makes_special_keeps_the_white_space_that_it_takes(tmp_path: Path) -> None:
    rust = RustTokenizer(models.WordLevel({"a": 0, "Ċ": 1}, unk_token="a"))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.add_tokens([AddedToken("<turn>", rstrip=True, normalized=False)])
    rust.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<turn>"}))

    tokenizer = load_tokenizer(str(tmp_path))

    assert tokenizer.special_token_ids == (2,)
    assert tokenizer.encode("a<turn>\na") == [0, 2, 0]


def test_generation_config_gives_the_eos_ids(directory: Path) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2], "temperature": 0.2}))
    (directory / "config.json").write_text(json.dumps({"max_position_embeddings": 77, "eos_token_id": 5}))

    facts = load_tokenizer(str(directory)).facts

    assert facts.eos_token_ids == (2, 0)
    assert facts.generation_config["temperature"] == 0.2
    assert facts.max_length == 77


@pytest.mark.parametrize("file", ["chat_template.json", "processor_config.json"])
def test_a_processor_s_template_replaces_the_tokenizer_s(directory: Path, file: str) -> None:
    (directory / "chat_template.jinja").unlink()
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "text only"}))
    (directory / file).write_text(json.dumps({"chat_template": "with images"}))

    assert load_tokenizer(str(directory)).facts.chat_templates == {"default": "with images"}


def test_the_image_processor_s_settings_are_read_from_either_file(directory: Path) -> None:
    (directory / "preprocessor_config.json").write_text(json.dumps({"do_resize": True, "size": 1}))
    assert load_tokenizer(str(directory)).facts.image_processor == {"do_resize": True, "size": 1}

    (directory / "processor_config.json").write_text(json.dumps({"image_processor": {"do_resize": True, "size": 2}}))
    assert load_tokenizer(str(directory)).facts.image_processor == {"do_resize": True, "size": 2}

    (directory / "processor_config.json").unlink()
    (directory / "preprocessor_config.json").write_text(json.dumps({"feature_size": 80, "hop_length": 160}))
    assert load_tokenizer(str(directory)).facts.image_processor == {}


def test_a_list_of_templates_is_read_by_name(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))

    assert load_tokenizer(str(directory)).facts.chat_templates == {"default": "d", "tool_use": "t"}


def test_truncation_in_the_file_does_not_shorten_texts(directory: Path) -> None:
    state = json.loads((directory / "tokenizer.json").read_text())
    state["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (directory / "tokenizer.json").write_text(json.dumps(state))

    assert len(load_tokenizer(str(directory)).encode("one two three four")) == 4


@pytest.mark.parametrize("model_type", ["mamba2", "llama"])
def test_a_directory_without_a_vocabulary_is_refused(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 320}))

    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_of_its_own_can_be_named(smollm2: Path, saved: Path) -> None:
    tokenizer = load_tokenizer(str(smollm2), str(saved))

    assert tokenizer.encode("The capital") == [504, 3575]


def test_a_template_file_replaces_the_models(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("mine")

    assert load_tokenizer(str(saved), chat_template=str(tmp_path / "mine.jinja")).facts.chat_templates == {"default": "mine"}
    with pytest.raises(NotFound, match=r"other\.jinja"):
        load_tokenizer(str(saved), chat_template=str(tmp_path / "other.jinja"))


def test_a_template_may_be_given_itself_with_escaped_line_breaks(saved: Path) -> None:
    """vLLM's single-line form: a shell passes backslash and n, which stand for a line break."""
    facts = load_tokenizer(str(saved), chat_template=r"{{ messages[0].content }}\nend").facts

    assert facts.chat_templates == {"default": "{{ messages[0].content }}\nend"}
    with pytest.raises(ModelError, match=r"The given template: The chat template is not valid: line 1"):
        load_tokenizer(str(saved), chat_template="{% if %}")


def test_a_template_file_that_is_none_is_refused_at_the_start(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{% if %}")

    with pytest.raises(ModelError, match=r"mine\.jinja: The chat template is not valid: line 1"):
        load_tokenizer(str(saved), chat_template=str(tmp_path / "mine.jinja"))


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_broken_file_is_named(directory: Path, file: str, content: str) -> None:
    (directory / file).write_text(content)

    with pytest.raises(ModelError, match=file):
        load_tokenizer(str(directory))


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_there_is_no_such_model() -> None:
    with pytest.raises(NotFound, match="no/such/model"):
        load_tokenizer("./no/such/model")


def test_a_directory_of_an_older_kind_is_converted(reference: Any, tmp_path: Path) -> None:
    """`reference` is asked for because conversion needs transformers, which imports torch where it is installed."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*letters, "hi", "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh i\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "eos_token_id": 257}))

    tokenizer = load_tokenizer(str(tmp_path))

    assert tokenizer.token_strings(tokenizer.encode("hi")) == ["hi"]
    assert tokenizer.facts.eos_token_ids == (257,)
