"""One request under a constraint: its allowed tokens, and its end."""

import numpy as np
import pytest

from tetrad.engine_core_svc.structured_output.filler import Advance

EOS, OTHER_EOS = 0, 1


def ids_of(writer, text):
    return writer.vocabulary.tokens.tokenize_str(text)


def test_a_text_that_cannot_go_on_is_complete_without_eos(open_writer):
    writer = open_writer("choice", '["yes", "no"]')

    writer.write_text("yes")

    assert writer.state.is_complete
    assert writer.state.error is None


def test_every_eos_is_allowed_where_the_text_may_end_and_nowhere_else(open_writer):
    writer = open_writer("regex", "ab+")

    assert not {EOS, OTHER_EOS} & set(writer.allowed)
    writer.write_text("ab")
    assert {EOS, OTHER_EOS} < set(writer.allowed)
    writer.write(OTHER_EOS)
    assert writer.state.is_complete


def test_ids_that_pad_the_models_vocabulary_are_never_allowed(open_writer, vocabulary):
    writer = open_writer("regex", "(.|\n)*")
    first_padding = ids_of(writer, "<f")[0] + 1

    assert max(writer.allowed) < first_padding < vocabulary.vocab_size
    assert not writer.state.allows(vocabulary.vocab_size - 1)
    assert not writer.state.allows(10_000)


def test_special_tokens_are_no_text(open_writer, vocabulary):
    writer = open_writer("regex", r".*")

    assert not writer.state.allows(vocabulary.special_tokens["<|call|>"])


def test_tokens_are_followed_across_any_cut(open_writer):
    writer = open_writer(
        "json_schema", '{"properties": {"a": {"const": true}}, "required": ["a"], "additionalProperties": false}'
    )

    writer.write(*ids_of(writer, "{"), *ids_of(writer, '"a'), *ids_of(writer, '":tr'), *ids_of(writer, "ue}"))

    assert writer.text == '{"a":true}'
    assert writer.state.is_complete


# --- together with other parameters -----------------------------------------------------------------------------------


def test_ignore_eos_leaves_eos_out_as_long_as_the_text_can_go_on(open_writer):
    writer = open_writer("regex", "ab{1,2}", ignore_eos=True)

    writer.write_text("ab")

    assert not {EOS, OTHER_EOS} & set(writer.allowed)
    writer.write_text("b")
    assert writer.state.is_complete


def test_min_tokens_leaves_out_what_would_end_the_request_too_early(open_writer):
    stop_id = 10
    writer = open_writer("regex", "(.)+", min_tokens=3, stop_token_ids=(stop_id,))

    for _ in range(3):
        assert not {EOS, OTHER_EOS, stop_id} & set(writer.allowed)
        writer.write_text("a")

    assert {EOS, OTHER_EOS, stop_id} < set(writer.allowed)


def test_a_text_that_is_over_before_min_tokens_is_over(open_writer):
    writer = open_writer("choice", '["a"]', min_tokens=5)

    writer.write_text("a")

    assert writer.state.is_complete


def test_allowed_token_ids_and_the_constraint_must_both_allow(open_writer):
    writer = open_writer("regex", "[a-c]{1,2}")
    a, d = ids_of(writer, "a")[0], ids_of(writer, "d")[0]

    both = open_writer("regex", "[a-c]{1,2}", allowed_token_ids=(a, d, 10**9))

    assert both.allowed == [a]
    both.write(a)
    assert both.allowed == [a]


def test_a_complete_text_with_nothing_left_to_sample_ends_well(open_writer):
    a = ids_of(open_writer("regex", "a"), "a")[0]
    writer = open_writer("regex", "ab?", allowed_token_ids=(a,))

    writer.write(a)

    assert writer.state.is_complete


def test_an_incomplete_text_with_nothing_left_to_sample_fails(open_writer):
    writer = open_writer("regex", "[a-c]+", allowed_token_ids=(3,))

    assert not writer.state.is_complete
    assert "nothing is left to sample" in writer.state.error.message
    assert writer.state.error.field == "structured_outputs"


def test_a_constraint_that_becomes_too_costly_fails(open_writer):
    writer = open_writer("regex", "b(a{1000}){1000}")

    writer.write_text("b")

    assert "too costly to follow" in writer.state.error.message


# --- constraints that begin later -------------------------------------------------------------------------------------


@pytest.fixture
def thinker(open_writer):
    """A choice behind the ids 40, 41, 40."""
    return open_writer("choice", '["yes"]', start_after=(40, 41, 40))


def test_before_its_start_everything_but_eos_is_allowed(thinker, vocabulary):
    assert set(thinker.allowed) == set(range(vocabulary.tokens.vocab_size)) - {EOS, OTHER_EOS}


def test_the_constraint_begins_behind_the_whole_sequence_only(thinker):
    thinker.write(40, 41, 50, 41, 40, 40, 41)
    assert len(thinker.allowed) > 100

    thinker.write(40)

    assert not thinker.state.is_complete
    thinker.write_text("yes")
    assert thinker.state.is_complete


def test_the_sequence_is_found_where_it_overlaps_itself(thinker):
    thinker.write(40, 41, 41, 40, 41, 40)

    assert thinker.takes("yes")
    assert len(thinker.allowed) < 10


def test_an_end_that_begins_with_a_special_token_is_completed(open_writer, vocabulary):
    """A model may write more between its ids, as in `<|channel|>final <|constrain|>json<|message|>`."""
    special = vocabulary.special_tokens["<|call|>"]
    writer = open_writer("choice", '["yes"]', start_after=(special, 40, 50))

    writer.write(special, 41, special)
    assert len(writer.allowed) > 100
    writer.write(40)

    assert writer.allowed == [50]
    writer.write(50)
    writer.write_text("yes")
    assert writer.state.is_complete


def test_an_end_that_is_text_is_found_in_other_tokens(open_writer, vocabulary):
    """A tokenizer joins the characters of a mark with those before it, as in `.</` `think` `>`."""
    end, [joined] = (vocabulary.tokens.tokenize_str(text) for text in ("f>", "<f"))
    writer = open_writer("choice", '["yes"]', start_after=end)
    assert joined not in end

    writer.write(joined)
    writer.write_text(">")

    assert writer.takes("yes")
    assert len(writer.allowed) < 10


def test_the_space_that_a_tokenizer_writes_before_a_text_is_not_part_of_an_end(open_writer, vocabulary):
    writer = open_writer("choice", '["yes"]', start_after=vocabulary.tokens.tokenize_str(" f>"))

    writer.write_text("\n<f>")

    assert writer.takes("yes")
    assert len(writer.allowed) < 10


def test_no_token_completes_an_end_and_goes_on(open_writer, vocabulary):
    """What it holds after the end would belong to the language."""
    end, [longer], [brace] = (vocabulary.tokens.tokenize_str(text) for text in ("x{", '{"', "{"))
    writer = open_writer("choice", '["yes"]', start_after=end)
    assert {longer, brace} <= set(writer.allowed)

    writer.write_text("x")

    assert longer not in writer.allowed and brace in writer.allowed
    writer.write_text("y")
    assert longer in writer.allowed


def test_min_tokens_count_from_the_beginning_of_the_output(open_writer):
    writer = open_writer("regex", "a+", start_after=(40,), min_tokens=3)

    writer.write(50, 40)
    writer.write_text("a")

    assert EOS in writer.allowed


# --- constraints behind a stretch that the output may leave out -------------------------------------------------------


@pytest.fixture
def free_thinker(open_writer):
    """A choice, alone or behind a stretch between the ids 40 41 and 42."""
    return open_writer("choice", '["yes", "no"]', opening=(40, 41), start_after=(42,))


def test_the_first_token_belongs_to_the_language_or_opens_the_stretch(free_thinker):
    assert set(free_thinker.allowed) == {*ids_of(free_thinker, "y"), *ids_of(free_thinker, "n"), 40}


def test_the_opening_may_be_the_beginning_of_the_end(open_writer):
    """As in `<|channel|>final<|message|>`, which begins an answer without reasoning: `<|channel|>` opens both."""
    writer = open_writer("choice", '["yes"]', opening=(40,), start_after=(40, 41, 42))

    writer.write(40, 41, 42)

    assert writer.allowed == ids_of(writer, "y")


def test_without_the_opening_the_constraint_holds_from_the_first_token(free_thinker):
    free_thinker.write_text("y")
    assert free_thinker.allowed == ids_of(free_thinker, "e")

    free_thinker.write_text("es")

    assert free_thinker.state.is_complete


def test_an_opening_once_begun_is_written_to_its_end(free_thinker):
    free_thinker.write(40)

    assert free_thinker.allowed == [41]


def test_behind_the_opening_the_constraint_waits_for_the_end(free_thinker, vocabulary):
    free_thinker.write(40, 41, *ids_of(free_thinker, "yes"), 40)
    assert set(free_thinker.allowed) == set(range(vocabulary.tokens.vocab_size)) - {EOS, OTHER_EOS}

    free_thinker.write(42)
    assert set(free_thinker.allowed) == {*ids_of(free_thinker, "y"), *ids_of(free_thinker, "n")}
    free_thinker.write_text("no")

    assert free_thinker.state.is_complete


def test_an_opening_that_may_also_be_text_is_followed_as_both(open_writer):
    """Until it is decided; what turns out to be the opening is no part of the text."""
    less, letter = ids_of(open_writer("regex", "a"), "<t")

    def writer():
        return open_writer("choice", '["<a", "<b"]', opening=(less, letter), start_after=(42,))

    text, thoughts = writer(), writer()
    for each in (text, thoughts):
        each.write(less)
        assert set(each.allowed) == {*ids_of(each, "a"), *ids_of(each, "b"), letter}
    text.write_text("a")
    thoughts.write(letter, 42)

    assert text.state.is_complete
    assert thoughts.allowed == [less]
    thoughts.write(less, *ids_of(thoughts, "b"))
    assert thoughts.state.is_complete


@pytest.mark.parametrize("num_tokens", range(7))
def test_resumed_tokens_lead_behind_the_same_opening(open_writer, num_tokens):
    options = {"opening": (40, 41), "start_after": (42,), "min_tokens": 9}
    straight, resumed = (open_writer("choice", '["yes", "no"]', **options) for _ in range(2))
    straight.write(*[40, 41, 50, 42, *ids_of(straight, "ye")][:num_tokens])

    resumed.filler.run([Advance(resumed.state, straight.token_ids)])

    assert np.array_equal(resumed.state.mask, straight.state.mask)


def test_resumed_tokens_lead_to_the_same_place(open_writer):
    """As after the loss of an engine: all tokens at once, on a new state."""
    tokens = [50, 40, 41, 40]
    straight = open_writer("choice", '["yes", "no"]', start_after=(40, 41, 40), min_tokens=9)
    straight.write(*tokens)
    straight.write_text("y")
    resumed = open_writer("choice", '["yes", "no"]', start_after=(40, 41, 40), min_tokens=9)

    resumed.filler.run([Advance(resumed.state, straight.token_ids)])

    assert np.array_equal(resumed.state.mask, straight.state.mask)
    assert 0 < len(resumed.allowed) < 5


def test_many_states_are_filled_together(open_writer):
    writers = [open_writer("choice", f'["{letter}x"]') for letter in "abcdefgh"]

    writers[0].filler.run(
        [Advance(writer.state, ids_of(writer, letter)) for writer, letter in zip(writers, "abcdefgh", strict=True)]
    )

    assert all(writer.allowed == ids_of(writer, "x") for writer in writers)
