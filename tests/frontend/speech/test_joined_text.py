"""JoinedText: the deltas of pieces add up to one text with single spaces between the pieces."""

import pytest

from tetrad.frontend.speech.joined_text import JoinedText


def joined(language, *deltas):
    text = JoinedText(language)
    return "".join(text.add(piece, delta) for piece, delta in deltas)


@pytest.mark.parametrize(
    ("language", "deltas", "text"),
    [
        ("en", [(0, " Mary"), (0, " had"), (1, " a lamb. ")], "Mary had a lamb."),
        ("en", [(0, "Mary "), (1, "had")], "Mary had"),
        ("en", [(0, " "), (0, "Mary"), (1, " "), (2, " had")], "Mary had"),
        ("en", [(0, ""), (1, "Mary")], "Mary"),
        ("", [(0, "a"), (1, "b")], "a b"),
        ("ja", [(0, "メリー"), (1, " さん")], "メリーさん"),
        ("zh", [(0, "a b"), (1, "c")], "a bc"),
        ("en", [(0, "line\n"), (0, "\nline")], "line\n\nline"),
    ],
)
def test_pieces_are_joined(language, deltas, text):
    assert joined(language, *deltas) == text
