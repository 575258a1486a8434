"""GGUF files: every supported kind of tokenizer, and errors of broken files."""

import itertools
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from tetrad.services.errors import ModelError
from tetrad.services.models.gguf_container import read_gguf_header
from tetrad.tokenizer_svc.api.wire import encode_info
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.tokenizer_svc.loading.pre_tokenizers import byte_level_pre_tokenizer, known_pre_tokenizers

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a GGUF file with these `tokenizer.ggml.*` fields, and a chat template; None leaves one out."""

    def write_file(*, architecture: str = "llama", context_length: int = 128, **fields: Any) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_uint64(f"{architecture}.context_length", context_length)
        for key, value in fields.items():
            name = "tokenizer.chat_template" if key == "chat_template" else f"tokenizer.ggml.{key}"
            if isinstance(value, bool):
                writer.add_bool(name, value)
            elif isinstance(value, str):
                writer.add_string(name, value)
            elif isinstance(value, int):
                writer.add_uint32(name, value)
            elif value is not None:
                writer.add_array(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write_file


def byte_level(**fields: Any) -> dict[str, Any]:
    """Letters, a few merges and two control tokens."""
    merges = ["h i", "Ġ hi", "Ġ a"]
    tokens = [*LETTERS, *(merge.replace(" ", "") for merge in merges), "<s>", "</s>", "<tool>"]
    types = [NORMAL] * (len(tokens) - 3) + [CONTROL, CONTROL, USER_DEFINED]
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": merges,
        "bos_token_id": len(tokens) - 3,
        "eos_token_id": len(tokens) - 2,
        **fields,
    }


def test_the_reader_finds_what_the_gguf_package_finds(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"):
        getattr(writer, f"add_{kind}")(kind, 77)
    writer.add_bool("bool", False)
    writer.add_string("string", "你好\n")
    writer.add_array("strings", ["a", "", "é"])
    writer.add_array("ints", [-1, 2])
    writer.add_array("floats", [0.5, -2.0])
    writer.add_array("bools", [True, False])
    writer.add_tensor("weight", np.ones((2, 3), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    ours = read_gguf_header(path).metadata
    theirs = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}

    assert len(ours) == 17
    assert ours == {name: value for name, value in theirs.items() if not name.startswith("GGUF.")}


def test_merges_and_control_tokens(write: Write) -> None:
    tokenizer = load_tokenizer(str(write(**byte_level())))
    tokens = byte_level()["tokens"]

    ids = tokenizer.encode("hi hi<tool></s>")

    assert [tokens[token_id] for token_id in ids] == ["hi", "Ġhi", "<tool>", "</s>"]
    assert tokenizer.decode(ids) == "hi hi<tool>"
    assert tokenizer.facts.max_length == 128


@pytest.mark.parametrize(("length", "known"), [(2**31 - 1, 2**31 - 1), (2**31, None), (2**64 - 1, None), (0, None)])
def test_a_context_that_no_model_has_is_unknown(write: Write, length: int, known: int | None) -> None:
    tokenizer = load_tokenizer(str(write(**byte_level(), context_length=length)))

    assert tokenizer.facts.max_length == known
    assert encode_info(tokenizer, "m", ()).model_max_length == (known or 0)


@pytest.mark.parametrize(
    ("fields", "front", "back"),
    [
        ({}, [], []),
        ({"pre": "llama-bpe"}, ["<s>"], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
        ({"add_bos_token": True, "add_eos_token": True}, ["<s>"], ["</s>"]),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(
    write: Write, fields: dict[str, Any], front: list[str], back: list[str]
) -> None:
    tokenizer = load_tokenizer(str(write(**byte_level(**fields))))

    assert tokenizer.token_strings(tokenizer.encode("hi")) == [*front, "hi", *back]


def test_every_id_that_ends_a_turn_is_an_eos_id(write: Write) -> None:
    tokens = byte_level()["tokens"]
    tokenizer = load_tokenizer(str(write(**byte_level(eot_token_id=len(tokens) - 1))))

    assert tokenizer.facts.eos_token_ids == (len(tokens) - 2, len(tokens) - 1)


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        ("{{ m.content }}<end_of_turn>", ["<end_of_turn>"]),
        ("{{ m.content }}<|end|>", ["<|end|>"]),
        # Of gpt-oss, whose messages within a turn end with <|end|>.
        ("{{ m.content }}<|end|>{{ m.call }}<|call|>", ["<|call|>"]),
        ("{{ m.call }}<|observation|>{{ m.result }}", ["<|observation|>"]),
        ("{{ m.content }}", []),
        (None, []),
    ],
)
def test_a_token_with_which_the_chat_template_ends_turns_is_an_eos_id(
    write: Write, written: str | None, ends: list[str]
) -> None:
    """llama.cpp's converter gives the id of only one token; Gemma's and Phi-3's files give that of the end of a text."""
    fields = byte_level()
    tokens = [*fields["tokens"], "<end_of_turn>", "<|end|>", "<|call|>", "<|observation|>"]
    types = [*fields["token_type"], *[CONTROL] * 4]

    tokenizer = load_tokenizer(str(write(**fields | {"tokens": tokens, "token_type": types, "chat_template": written})))

    assert [tokens[token_id] for token_id in tokenizer.facts.eos_token_ids] == ["</s>", *ends]


def test_an_id_that_stands_for_none_is_none(write: Write) -> None:
    tokenizer = load_tokenizer(str(write(**byte_level(bos_token_id=2**32 - 1))))

    assert tokenizer.facts.special.bos is None


def test_an_id_that_no_token_has_is_refused(write: Write) -> None:
    with pytest.raises(ModelError, match=r"eos_token_id is 4000, and ids are below \d+"):
        load_tokenizer(str(write(**byte_level(eos_token_id=4000))))


@pytest.mark.parametrize(
    ("name", "text", "cuts"),
    [
        ("gpt-2", "I'll pay 1234  now", ["I", "'ll", " pay", " 1234", " ", " now"]),
        ("smollm", "pay 12  3", ["pay", " ", "1", "2", "  ", "3"]),
        ("llama-bpe", "I'LL pay 12345!\n", ["I", "'LL", " pay", " ", "123", "45", "!\n"]),
        ("qwen2", "pay 123\n\nx", ["pay", " ", "1", "2", "3", "\n\n", "x"]),
        ("seed-coder", "x = 12;\n\ny", ["x", " =", " ", "1", "2", ";", "\n\n", "y"]),
        ("tekken", "fooBar 12", ["foo", "Bar", " ", "1", "2"]),
        ("gpt-4o", "fooBar's 1234", ["foo", "Bar's", " ", "123", "4"]),
        ("bloom", "It's  (a-b), 1234!। 語い", ["It's", "  (", "a-b", "),", " 1234", "!।", " 語い"]),
        ("falcon", "It's  $12345 a<=b 语!", ["It", "'", "s", "  ", "$", "123", "45", " a", "<=", "b", " 语", "!"]),
        ("deepseek-llm", "It's 12 x  \n語い!", ["It", "'", "s", " ", "1", "2", " x", "  ", "\n", "語い", "!"]),
        ("deepseek-v3", "It's 1234 x_y\n語い!", ["It", "'s", " ", "123", "4", " x", "_y", "\n", "語い", "!"]),
    ],
)
def test_a_pre_tokenizer_cuts_as_its_model_was_trained(name: str, text: str, cuts: list[str]) -> None:
    found = byte_level_pre_tokenizer(name).pre_tokenize_str(text)

    assert [text[start:end] for _, (start, end) in found] == cuts


@pytest.mark.parametrize("name", known_pre_tokenizers())
def test_every_pre_tokenizer_keeps_all_bytes(write: Write, name: str, texts: list[str]) -> None:
    tokenizer = load_tokenizer(str(write(**byte_level(pre=name))))
    sample = [text for text in texts if "ﬁ" not in text and "e\u0301" not in text][:20]

    for text in sample:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "is_composed"), [("gpt-2", False), ("bloom", False), ("qwen2", True), ("mpt", True), ("olmo", True)]
)
def test_letters_and_their_accents_are_composed_where_the_models_tokenizer_does(
    write: Write, name: str, is_composed: bool
) -> None:
    tokenizer = load_tokenizer(str(write(**byte_level(pre=name))))

    found = tokenizer.encode("e\u0301")

    assert (found == tokenizer.encode("\u00e9")) == is_composed


def test_a_word_in_the_vocabulary_needs_no_merges_in_llama_bpe(write: Write) -> None:
    plain = byte_level(pre="gpt-2", tokens=[*LETTERS, "abc"], token_type=None, merges=["a b"], bos_token_id=None)
    plain["tokens"].append("ab")
    del plain["eos_token_id"]

    by_merges = load_tokenizer(str(write(**plain)))
    whole = load_tokenizer(str(write(**plain | {"pre": "llama-bpe"})))

    assert by_merges.token_strings(by_merges.encode("abc")) == ["ab", "c"]
    assert whole.token_strings(whole.encode("abc")) == ["abc"]


@pytest.fixture(scope="module")
def vocabulary() -> tuple[list[str], list[float]]:
    """Letters and, made of them, words with scores as SentencePiece gives them: the later, the lower."""
    dice = random.Random(3)
    tokens = ["▁", *"abcdef"]
    while len(tokens) < 60:
        word = dice.choice(tokens) + dice.choice(tokens)
        if word not in tokens and "▁" not in word[1:]:
            tokens.append(word)
    return tokens, [-float(i) for i in range(len(tokens))]


@pytest.fixture
def fields(vocabulary: tuple[list[str], list[float]]) -> dict[str, Any]:
    words, scores = vocabulary
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    return {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *byte_tokens, *words],
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)],
        "scores": [0.0] * 259 + scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


class TestSentencePiece:
    def test_the_best_scored_pair_is_merged_first(
        self, write: Write, fields: dict[str, Any], vocabulary: tuple[list[str], list[float]]
    ) -> None:
        tokenizer = load_tokenizer(str(write(**fields)))
        dice = random.Random(4)

        for _ in range(300):
            text = "".join(dice.choices("abcdef ", k=dice.randint(1, 20)))
            strings = tokenizer.token_strings(tokenizer.encode(text, add_special_tokens=False))
            assert strings == merge_by_score("▁" + text.replace(" ", "▁"), *vocabulary), text

    def test_bos_comes_first_and_text_comes_back(self, write: Write, fields: dict[str, Any]) -> None:
        tokenizer = load_tokenizer(str(write(**fields)))

        ids = tokenizer.encode("abc  dé 😀")

        assert ids[0] == 1
        assert tokenizer.decode(ids) == "abc  dé 😀"

    @pytest.mark.parametrize(("architecture", "behind"), [("phi3", ["▁", "a"]), ("llama", ["▁", "<0x0A>", "a"])])
    def test_a_turn_mark_of_phi_3_takes_the_line_break_behind_it(
        self, write: Write, fields: dict[str, Any], architecture: str, behind: list[str]
    ) -> None:
        """Its chat template writes `<|user|>` and a line break, which transformers encodes as one token."""
        fields |= {"tokens": [*fields["tokens"], "<|user|>"], "token_type": [*fields["token_type"], CONTROL]}
        fields |= {"scores": [*fields["scores"], 0.0], "architecture": architecture}
        tokenizer = load_tokenizer(str(write(**fields)))

        strings = tokenizer.token_strings(tokenizer.encode("<|user|>\na", add_special_tokens=False))

        assert strings == ["<|user|>", *behind]

    def test_a_file_can_do_without_the_space_in_front(self, write: Write, fields: dict[str, Any]) -> None:
        tokenizer = load_tokenizer(str(write(**fields, add_space_prefix=False)))

        ids = tokenizer.encode(" a", add_special_tokens=False)

        assert tokenizer.decode(ids) == " a"
        assert tokenizer.token_strings(tokenizer.encode("a", add_special_tokens=False)) == ["a"]


def merge_by_score(text: str, tokens: list[str], scores: list[float]) -> list[str]:
    """SentencePiece's BPE, the slow way: join the pair whose token has the best score, the leftmost first."""
    score = dict(zip(tokens, scores, strict=True))
    parts = list(text)
    while True:
        pairs = [(score[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in score]
        if not pairs:
            return parts
        i = -max(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


class TestBrokenFiles:
    @pytest.mark.parametrize("size", [0, 3, 20, 400, 50_000, 1_500_000, 1_775_000, 2_000_000])
    def test_a_file_that_ends_too_early_is_named(self, smollm2: Path, tmp_path: Path, size: int) -> None:
        cut = tmp_path / "cut.gguf"
        with smollm2.open("rb") as file:
            cut.write_bytes(file.read(size))

        with pytest.raises(ModelError, match=r"cut\.gguf") as caught:
            load_tokenizer(str(cut))
        assert "\n" not in caught.value.message

    @pytest.mark.parametrize(
        "head",
        [
            b"PK\x03\x04" + bytes(100),
            b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
            b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 99),
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**60),
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63) + b"k",
            b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60),
        ],
        ids=["zip", "version", "big-endian", "type", "array", "text", "count"],
    )
    def test_a_file_that_is_no_gguf_is_refused(self, tmp_path: Path, head: bytes) -> None:
        path = tmp_path / "odd.gguf"
        path.write_bytes(head)

        with pytest.raises(ModelError, match=r"odd\.gguf"):
            load_tokenizer(str(path))

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"model": "bert"}, "'bert'"),
            ({"model": None}, "None"),
            ({"pre": "brand-new"}, "brand-new"),
            ({"tokens": None}, "tokens"),
            ({"tokens": [1, 2, 3]}, "tokens"),
            ({"merges": None}, "merges"),
            ({"merges": ["nospace"]}, "nospace"),
            ({"merges": ["qq zz"]}, "model"),
            ({"token_type": [1, 1]}, "2 token types"),
            ({"model": "llama"}, "scores"),
        ],
    )
    def test_a_tokenizer_that_cannot_be_built_says_why(self, write: Write, fields: dict[str, Any], reason: str) -> None:
        path = write(**byte_level(**fields))

        with pytest.raises(ModelError, match=reason) as caught:
            load_tokenizer(str(path))
        assert "\n" not in caught.value.message


def test_a_later_part_of_a_model_names_the_first(write: Write, tmp_path: Path) -> None:
    path = write(**byte_level()).rename(tmp_path / "m-00002-of-00002.gguf")

    with pytest.raises(ModelError, match=r"give the path of the first one, m-00001-of-00002\.gguf"):
        load_tokenizer(str(path))
