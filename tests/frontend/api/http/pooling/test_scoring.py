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


async def test_a_request_of_voyage_s_client_has_its_form_of_answer(http):
    """The client reads `data` and the total of `usage` alone, and always sends `truncation`."""
    body = {"query": "hello", "documents": ["x" * 900, "hello", "hello, you"], "top_k": 2, "truncation": True, "model": "fake"}

    answer = await http.post("/v1/rerank", json=body)

    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [each["index"] for each in found["data"]] == [each["index"] for each in found["results"]]
    assert len(found["data"]) == 2
    assert found["data"][0]["document"] == found["results"][0]["document"]["text"]
    assert found["usage"]["total_tokens"] > 0


async def test_a_request_without_voyage_s_fields_has_no_second_form(http):
    answer = await http.post("/rerank", json={"query": "hello", "documents": ["x"]})

    assert "data" not in answer.json()


async def test_without_truncation_a_document_that_is_too_long_is_refused(http):
    answer = await http.post("/rerank", json={"query": "hello", "documents": ["x" * 900], "truncation": False})

    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_k": 1, "top_n": 2}, "top_k"),
        ({"top_k": -1}, "top_k"),
        ({"raw_scores": True, "use_activation": True}, "raw_scores"),
        ({"rank_fields": ["title", "text"]}, "rank_fields"),
        ({"max_chunks_per_doc": 10}, "max_chunks_per_doc"),
    ],
)
async def test_a_field_of_another_api_that_cannot_take_effect_is_refused(http, fields, param):
    answer = await http.post("/rerank", json={"query": "hello", "documents": ["x"]} | fields)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
