"""Rarely changed settings: each has its documented effect."""

import pytest

LIMITS = {
    "max_stop_chars": 3,
    "max_bad_words": 1,
    "max_bad_word_chars": 3,
    "max_chars_per_token": 1,
    "max_completion_prompts": 2,
    "max_body_objects": 16,
    "max_body_values": 16,
}
COMPLETIONS = "/v1/completions"
PREFLIGHT = {"origin": "https://a.example", "access-control-request-method": "GET"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stop": "abcd"}, "A stop string may have at most 3 characters, got 4."),
        ({"bad_words": ["a", "b"]}, "bad_words may hold at most 1 words, got 2."),
        ({"bad_words": ["abcd"]}, "A bad word may have at most 3 characters, got 4."),
        ({"prompt": "x" * 513}, "the prompt has 513 characters, but at most 512 can fit"),
        ({"prompt": ["a", "b", "c"]}, "at most 2"),
        ({"prompt": [[1]] * 17}, "The body holds more than 16 objects and lists"),
        ({"prompt": [1] * 18}, "The body holds more than 16 values"),
    ],
    ids=LIMITS,
)
async def test_what_a_setting_does_not_take_is_refused_with_its_limit(serve_frontend, engine, changes, text):
    async with serve_frontend(**LIMITS) as frontend:
        refused = await frontend.http.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1} | changes)
        taken = await frontend.http.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1, "stop": "abc", "bad_words": ["a"]})

    assert (refused.status_code, taken.status_code) == (400, 200)
    assert text in refused.json()["error"]["message"]


async def test_metrics_have_the_prefix_of_other_dashboards_if_wanted(serve_frontend):
    async with serve_frontend(metrics_prefix="vllm") as frontend:
        text = (await frontend.http.get("/metrics")).text

    assert "vllm:num_requests_running" in text
    assert "tetrad:num_requests_running" not in text


async def test_the_authors_sampling_defaults_are_not_taken_if_not_wanted(connect, tokenizer):
    tokenizer.generation_config = '{"temperature": 0.6}'

    llm = await connect(use_generation_config=False)

    assert llm.default_sampling_fields() == {}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"access-control-request-headers": "x-one"}, 200),
        ({"access-control-request-headers": "x-two"}, 400),
        ({"access-control-request-method": "POST"}, 400),
    ],
    ids=["allowed", "header", "method"],
)
async def test_pages_may_use_the_methods_and_headers_that_are_allowed(serve_frontend, changes, status):
    settings = {"allowed_origins": ("https://a.example",), "allowed_methods": ("GET",), "allowed_headers": ("x-one",)}

    async with serve_frontend(**settings) as frontend:
        answer = await frontend.http.options("/v1/models", headers=PREFLIGHT | changes)

    assert answer.status_code == status


@pytest.mark.parametrize(("setting", "value"), [("responses_store_max_count", 1), ("responses_store_max_age_s", 1e-6)])
async def test_of_responses_no_more_are_kept_than_is_set(serve_frontend, setting, value):
    async with serve_frontend(**{setting: value}) as frontend:
        bodies = [{"input": "a", "max_output_tokens": 1} for _ in range(2)]
        made = [(await frontend.http.post("/v1/responses", json=body)).json()["id"] for body in bodies]
        first = await frontend.http.get(f"/v1/responses/{made[0]}")

    assert first.status_code == 404
