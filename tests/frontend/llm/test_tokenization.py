"""Calls that need the tokenizer only."""

import pytest

from tetrad.services.errors import InvalidRequest


@pytest.mark.parametrize("max_tokens", [0, -5, 513, 2**40])
async def test_pairs_are_cut_to_lengths_that_fit_the_context_alone(llm, tokenizer, max_tokens):
    """truncate_prompt_tokens of /score and /rerank has these limits for every model."""
    with pytest.raises(InvalidRequest, match=rf"truncate_prompt_tokens must be -1 or in \[1, 512\], got {max_tokens}\."):
        await llm.texts.tokenize_pairs([("a", "b")], max_tokens=max_tokens)

    assert tokenizer.num_encoded == 0


async def test_pairs_are_valid_text(llm):
    with pytest.raises(InvalidRequest, match=r"text contains the lone surrogate U\+D800 at character 1"):
        await llm.texts.tokenize_pairs([("a", "b\ud800")])
