"""Scores of pairs over HTTP."""

import pytest


@pytest.mark.parametrize(("limit", "kept"), [(None, 300), (0, 300), (20, 20)])
async def test_a_limit_of_zero_keeps_all_tokens_of_documents(http, limit, kept):
    """vLLM's clients send its default, 0."""
    body = {"query": "hello", "documents": ["x" * 300], "max_tokens_per_doc": limit, "max_tokens_per_query": limit}

    answer = await http.post("/rerank", json=body)

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == len("hello") + kept
