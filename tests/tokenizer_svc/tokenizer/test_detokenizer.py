"""Incremental detokenization: the deltas of every split add up to the whole text, without half characters."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models

from tetrad.services.errors import AlreadyExists, InvalidRequest, NotFound
from tetrad.tokenizer_svc.tokenizer.detokenize_stream import DetokenizeStream, OpenHandle
from tetrad.tokenizer_svc.tokenizer.facts import LoadedTokenizer, SpecialTokens
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

# Fixtures that are read only: one for all examples.
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
mixed_text = st.text(alphabet=st.sampled_from("aZ 0\n.é你好界한😀🤖👩‍👧\u200d\ufffd\x00▁"), max_size=40)
splits = st.lists(st.integers(1, 5), max_size=60)


def in_pieces(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """Cut ids into pieces of these sizes; what remains is the last one."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(ids[start : start + size])
        start += size
    return [*pieces, ids[start:]]


def deltas_of(tokenizer: Tokenizer, pieces: list[list[int]], *, context: list[int], skip: bool = True) -> str:
    detokenizer = tokenizer.open_detokenizer(context, skip_special_tokens=skip)
    return "".join([detokenizer.append(piece) for piece in pieces]) + detokenizer.flush()


class TestByteLevel:
    @relaxed
    @given(text=mixed_text, sizes=splits)
    def test_any_split_of_a_text_gives_the_text(self, tokenizer: Tokenizer, text: str, sizes: list[int]) -> None:
        ids = tokenizer.encode(text)

        assert deltas_of(tokenizer, in_pieces(ids, sizes), context=[504, 3575]) == text

    @relaxed
    @given(ids=st.lists(st.integers(0, 49151), max_size=30), sizes=splits, skip=st.booleans())
    def test_any_split_of_any_ids_gives_what_decode_gives(
        self, tokenizer: Tokenizer, ids: list[int], sizes: list[int], skip: bool
    ) -> None:
        whole = tokenizer.decode(ids, skip_special_tokens=skip)

        assert deltas_of(tokenizer, in_pieces(ids, sizes), context=[], skip=skip) == whole

    def test_an_unfinished_character_is_held_back(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode("🤖")
        detokenizer = tokenizer.open_detokenizer([504])

        deltas = [detokenizer.append([token_id]) for token_id in ids]

        assert len(ids) > 1
        assert deltas == [""] * (len(ids) - 1) + ["🤖"]

    def test_held_back_bytes_are_flushed_as_replacement_character(self, tokenizer: Tokenizer) -> None:
        detokenizer = tokenizer.open_detokenizer([504])
        detokenizer.append(tokenizer.encode("🤖")[:1])

        assert detokenizer.flush() == "\ufffd"
        assert detokenizer.flush() == ""

    def test_a_character_that_the_prompt_began_is_finished(self, tokenizer: Tokenizer) -> None:
        first, *rest = tokenizer.encode("🤖")

        assert deltas_of(tokenizer, [rest], context=[504, first]) == "🤖"

    def test_ids_beyond_the_vocabulary_have_no_text(self, tokenizer: Tokenizer) -> None:
        assert deltas_of(tokenizer, [[504, 49152, 60000, 3575]], context=[]) == "The capital"

    def test_special_tokens_show_only_when_asked_for(self, tokenizer: Tokenizer) -> None:
        assert deltas_of(tokenizer, [[504, 2]], context=[]) == "The"
        assert deltas_of(tokenizer, [[504, 2]], context=[], skip=False) == "The<|im_end|>"


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    """Decodes as SentencePiece models do: a space in front is stripped, bytes stand for rare characters."""
    words = ["<unk>", "<s>", "</s>", "▁Hello", "▁world", "!", "▁", "lo", "é", "\ufffd"]
    vocabulary = {word: i for i, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    rust = RustTokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    rust.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(LoadedTokenizer(rust, SpecialTokens(), (), {}, None))


def byte_ids(text: str) -> list[int]:
    return [10 + byte for byte in text.encode()]


class TestOtherDecoders:
    def test_space_after_the_prompt_is_kept(self, pieces: Tokenizer) -> None:
        assert deltas_of(pieces, [[4], [5]], context=[1, 3]) == " world!"

    def test_space_at_the_start_is_stripped_as_by_decode(self, pieces: Tokenizer) -> None:
        assert deltas_of(pieces, [[3], [4]], context=[]) == pieces.decode([3, 4]) == "Hello world"

    def test_skipped_tokens_do_not_make_a_new_start(self, pieces: Tokenizer) -> None:
        ids = [3, *[2] * 40, 4]

        assert deltas_of(pieces, [[token_id] for token_id in ids], context=[]) == pieces.decode(ids)

    @relaxed
    @given(
        words=st.lists(st.sampled_from(["▁Hello", "▁world", "!", "▁", "lo", "é", "你", "好", "😀", "界"]), max_size=40),
        sizes=splits,
    )
    def test_any_split_gives_what_decode_gives(self, pieces: Tokenizer, words: list[str], sizes: list[int]) -> None:
        ids = [i for word in words for i in ([pieces.token_id(word)] if pieces.token_id(word) is not None else byte_ids(word))]

        assert deltas_of(pieces, in_pieces(ids, sizes), context=[]) == pieces.decode(ids)

    def test_bytes_that_never_become_a_character_are_not_held_back_for_ever(self, pieces: Tokenizer) -> None:
        detokenizer = pieces.open_detokenizer([3])

        deltas = [detokenizer.append([10 + 0xFF]) for _ in range(200)]

        assert "".join([*deltas, detokenizer.flush()]) == "\ufffd" * 200
        assert all(len("".join(deltas[:n])) >= n - 40 for n in range(200))

    @pytest.mark.parametrize("num_kept", range(9, 13))
    def test_a_context_that_begins_inside_a_character_adds_nothing_to_the_output(
        self, pieces: Tokenizer, num_kept: int
    ) -> None:
        context = byte_ids("😀😀😀")[-num_kept:]

        assert deltas_of(pieces, [byte_ids("é")], context=context) == "é"
        assert deltas_of(pieces, [byte_ids("🤖")[2:]], context=context + byte_ids("🤖")[:2]) == "🤖"

    def test_a_replacement_character_at_the_end_of_the_prompt_is_not_output(self, pieces: Tokenizer) -> None:
        replacement = pieces.token_id("\ufffd")
        assert replacement is not None

        assert deltas_of(pieces, [[4]], context=[3, replacement]) == " world"

    def test_two_special_tokens_are_joined_without_a_space_when_asked_for(self) -> None:
        rust = RustTokenizer(models.WordLevel({"a": 0, "<x>": 1, "<y>": 2}, unk_token="a"))
        rust.add_special_tokens(["<x>", "<y>"])
        words = Tokenizer(LoadedTokenizer(rust, SpecialTokens(), (), {}, None))

        spaced, joined = (
            words.open_detokenizer([], skip_special_tokens=False, spaces_between_special_tokens=spaces)
            for spaces in (True, False)
        )

        assert spaced.append([0, 1, 2, 0]) == "a <x> <y> a"
        assert joined.append([0, 1, 2, 0]) == "a <x><y> a"


class TestStream:
    def test_deltas_come_in_the_order_of_the_append(self, tokenizer: Tokenizer) -> None:
        stream = DetokenizeStream(tokenizer)
        for handle in (1, 2, 3):
            stream.open(OpenHandle(handle, [504]))

        deltas = stream.append([3, 1, 2], [[504], [3575, 282], []])

        assert deltas.handles == [3, 1, 2]
        assert deltas.texts == ["The", " capital of", ""]

    def test_an_unknown_handle_fails_alone(self, tokenizer: Tokenizer) -> None:
        stream = DetokenizeStream(tokenizer)
        stream.open(OpenHandle(1, [504]))

        deltas = stream.append([9, 1], [[504], [3575]])

        assert (deltas.handles, deltas.texts) == ([1], [" capital"])
        [(handle, error)] = deltas.failures
        assert handle == 9
        assert isinstance(error, NotFound)

    def test_a_closed_handle_is_unknown(self, tokenizer: Tokenizer) -> None:
        stream = DetokenizeStream(tokenizer)
        stream.open(OpenHandle(1, [504]))
        stream.close([1, 77])

        assert stream.append([1], [[504]]).handles == []

    def test_opening_an_open_handle_is_reported_with_its_next_append(self, tokenizer: Tokenizer) -> None:
        stream = DetokenizeStream(tokenizer)
        stream.open(OpenHandle(1, [504]))
        stream.open(OpenHandle(1, [504]))

        [(_, error)] = stream.append([1], [[504]]).failures
        assert isinstance(error, AlreadyExists)

        stream.close([1])
        stream.open(OpenHandle(1, [504]))
        assert stream.append([1], [[504]]).texts == ["The"]

    def test_final_handles_are_flushed(self, tokenizer: Tokenizer) -> None:
        stream = DetokenizeStream(tokenizer)
        half = tokenizer.encode("🤖")[:1]
        stream.open(OpenHandle(1, [504]))
        stream.open(OpenHandle(2, [504]))

        assert stream.append([1, 2], [half, half], final_handles=[2]).texts == ["", "\ufffd"]

    def test_a_final_handle_without_new_ids_gets_a_delta_of_its_own(self, tokenizer: Tokenizer) -> None:
        stream = DetokenizeStream(tokenizer)
        for handle in (1, 2):
            stream.open(OpenHandle(handle, [504]))
        stream.append([1], [tokenizer.encode("🤖")[:1]])

        deltas = stream.append([2], [[504]], final_handles=[1, 5])

        assert list(zip(deltas.handles, deltas.texts, strict=True)) == [(2, "The"), (1, "\ufffd")]
        assert [handle for handle, _ in deltas.failures] == [5]

    @relaxed
    @given(text=mixed_text, cut=st.integers(0, 60))
    def test_no_character_is_lost_or_repeated_over_a_reconnect(self, tokenizer: Tokenizer, text: str, cut: int) -> None:
        prompt, ids = [504, 3575], tokenizer.encode(text)
        before, after = ids[:cut], ids[cut:]
        first, second = DetokenizeStream(tokenizer), DetokenizeStream(tokenizer)
        first.open(OpenHandle(1, prompt))
        [got] = first.append([1], [before]).texts

        second.open(OpenHandle(8, prompt + before, num_generated=len(before), num_chars_emitted=len(got)))
        [rest] = second.append([8], [after], final_handles=[8]).texts

        assert got + rest == text

    def test_text_that_the_client_never_got_comes_with_the_first_delta(self, tokenizer: Tokenizer) -> None:
        stream = DetokenizeStream(tokenizer)
        stream.open(OpenHandle(1, [2, 504, 3575], num_generated=2, num_chars_emitted=2))

        assert stream.append([1], [[282]]).texts == ["e capital of"]
        assert stream.append([1], [[282]]).texts == [" of"]

    @pytest.mark.parametrize("wrong", [{"num_generated": 3}, {"num_generated": 1, "num_chars_emitted": 99}])
    def test_a_resume_that_cannot_be_is_reported(self, tokenizer: Tokenizer, wrong: dict[str, int]) -> None:
        stream = DetokenizeStream(tokenizer)
        stream.open(OpenHandle(1, [504, 3575], **wrong))

        [(_, error)] = stream.append([1], [[282]]).failures
        assert isinstance(error, InvalidRequest)
        assert str(max(wrong.values())) in error.message
