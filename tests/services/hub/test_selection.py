"""The selection of a repository's files."""

import pytest

from tetrad.services.hub.name import HubName, parse_hub_name
from tetrad.services.hub.selection import NothingToSelect, select_files

TEXTS = ("config.json", "tokenizer.json")
GGUFS = ("Model-Q4_K_M.gguf", "Model-Q8_0.gguf", "mmproj-F16.gguf")
SPLIT = ("Model-Q8_0-00001-of-00002.gguf", "Model-Q8_0-00002-of-00002.gguf")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name")),
        ("gpt2", HubName("gpt2")),
        ("org/name-GGUF:Q4_K_M", HubName("org/name-GGUF", "Q4_K_M")),
        ("org/name:sub/a.gguf", HubName("org/name", "sub/a.gguf")),
        ("hf.co/org/name:Q8_0", HubName("org/name", "Q8_0")),
        ("https://huggingface.co/org/name", HubName("org/name")),
        ("models/a.gguf", None),
        ("/a/directory", None),
        ("one/two/three", None),
    ],
)
def test_names(text, name):
    assert parse_hub_name(text) == name


def test_other_formats_of_the_same_weights_are_left_out():
    others = ("pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx", "tf_model.h5", "README.md", "Model-Q8_0.gguf")

    selection = select_files([*TEXTS, "model.safetensors", *others])

    assert selection.files == (*TEXTS, "model.safetensors")
    assert selection.gguf is None


def test_pytorch_files_count_where_there_is_nothing_else():
    shards = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")

    assert select_files([*TEXTS, *shards, "training_args.bin"]).files == (*TEXTS, *shards)


def test_a_tokenizer_needs_no_weights():
    assert select_files([*TEXTS, "model.safetensors"], with_weights=False).files == TEXTS


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (GGUFS, "", "Model-Q4_K_M.gguf"),
        (GGUFS, "q8_0", "Model-Q8_0.gguf"),
        (GGUFS, "Model-Q8_0.gguf", "Model-Q8_0.gguf"),
        (("Model-F16.gguf",), "", "Model-F16.gguf"),
        (("sub/Model-Q8_0.gguf",), "Model-Q8_0.gguf", "sub/Model-Q8_0.gguf"),
        (("Model-Q8_0.gguf", "sub/Model-Q8_0.gguf"), "Model-Q8_0.gguf", "Model-Q8_0.gguf"),
        (("model.safetensors", *GGUFS), "Q8_0", "Model-Q8_0.gguf"),
    ],
)
@pytest.mark.parametrize("with_weights", [True, False])
def test_a_gguf_file_is_chosen_by_name_or_quantization(names, wanted, chosen, with_weights):
    selection = select_files([*TEXTS, *names], wanted, with_weights=with_weights)

    assert selection.gguf == chosen
    assert selection.files == (*TEXTS, chosen)


@pytest.mark.parametrize("wanted", ["", "Q8_0", "Model-Q8_0.gguf", SPLIT[0]])
def test_all_parts_of_a_split_file_are_needed_and_the_first_is_opened(wanted):
    selection = select_files(SPLIT, wanted)

    assert selection.files == SPLIT
    assert selection.gguf == SPLIT[0]


@pytest.mark.parametrize(
    ("names", "wanted", "message"),
    [
        ((*TEXTS, "training_args.bin"), "", r"it has no \*\.safetensors and no \*\.gguf file, only \*\.bin"),
        (("README.md",), "", "it has no config.json and no .gguf file"),
        (GGUFS, "Q2_K", "it has no .gguf file 'Q2_K'; it has Model-Q4_K_M.gguf, Model-Q8_0.gguf"),
        (("a-Q5_0.gguf", "a-Q8_0.gguf"), "", "add one after a colon: a-Q5_0.gguf, a-Q8_0.gguf"),
        (TEXTS, "Q8_0", "it has no .gguf file 'Q8_0'; it has no .gguf file"),
    ],
)
def test_a_repository_without_such_weights_says_what_it_has(names, wanted, message):
    with pytest.raises(NothingToSelect, match=message):
        select_files(names, wanted)
