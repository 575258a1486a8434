"""Calls that need the tokenizer only."""

import pytest

from tetrad.frontend.request.deadlines import deadline_after
from tetrad.services.errors import DeadlineExceeded, InvalidRequest


@pytest.mark.parametrize("max_tokens", [0, -5, 513, 2**40])
async def test_pairs_are_cut_to_lengths_that_fit_the_context_alone(llm, tokenizer, max_tokens):
    """truncate_prompt_tokens of /score and /rerank has these limits for every model."""
    with pytest.raises(InvalidRequest, match=rf"truncate_prompt_tokens must be -1 or in \[1, 512\], got {max_tokens}\."):
        await llm.texts.tokenize_pairs([("a", "b")], max_tokens=max_tokens)

    assert tokenizer.num_encoded == 0


async def test_pairs_are_valid_text(llm):
    with pytest.raises(InvalidRequest, match=r"text contains the lone surrogate U\+D800 at character 1"):
        await llm.texts.tokenize_pairs([("a", "b\ud800")])


@pytest.mark.parametrize(
    ("text", "max_tokens", "kept"),
    [
        ("ab🤖c", 2, "ab"),
        ("ab🤖c", 3, "ab"),
        ("ab🤖c", 5, "ab"),
        ("ab🤖c", 6, "ab🤖"),
        ("ab🤖c", 7, "ab🤖c"),
        ("🤖", 1, "\ufffd"),
    ],
)
async def test_a_text_is_cut_between_characters_if_any_remains(llm, text, max_tokens, kept):
    """Each byte is a token here; U+FFFD in place of a part of a character would be three tokens."""
    assert await llm.texts.cut([text], max_tokens, field="max_tokens_per_doc", text_field="text_2") == [kept]


@pytest.mark.parametrize(
    ("method", "args", "options"),
    [
        ("tokenize_pairs", [[("a", "b")]], {}),
        ("cut", [["a"], 5], {"field": "max_tokens_per_doc", "text_field": "text_2"}),
        ("tokenize", ["a"], {}),
        ("encode_pieces", [["a"]], {}),
        ("detokenize", [[97]], {}),
        ("token_texts", [[97]], {}),
        ("encode_chat", [[{"role": "user", "content": "a"}]], {}),
    ],
)
async def test_a_call_ends_at_its_deadline(connect, tokenizer, method, args, options):
    """Also if the tokenizer may take longer, as for /score with an X-Request-Timeout."""
    llm = await connect(recovery_timeout_s=3)
    tokenizer.hung.clear()

    with deadline_after(0.05), pytest.raises(DeadlineExceeded):
        await getattr(llm.texts, method)(*args, **options)

    tokenizer.hung.set()
    assert llm.admission.num_requests == 0
