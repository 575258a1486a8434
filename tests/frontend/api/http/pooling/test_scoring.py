"""Scores of pairs over HTTP."""

import pytest


@pytest.mark.parametrize(("limit", "kept"), [(None, 300), (0, 300), (20, 20)])
async def test_a_limit_of_zero_keeps_all_tokens_of_documents(http, limit, kept):
    """vLLM's clients send its default, 0."""
    body = {"query": "hello", "documents": ["x" * 300], "max_tokens_per_doc": limit, "max_tokens_per_query": limit}

    answer = await http.post("/rerank", json=body)

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == len("hello") + kept


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
async def test_a_ranking_has_cohere_s_facts_about_it(http, path):
    """Vercel's AI SDK refuses an answer without `meta`."""
    answer = await http.post(path, json={"query": "hello", "documents": ["x" * 9, "y" * 9]})

    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": found["usage"]["total_tokens"]}}
